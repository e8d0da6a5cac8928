//! Readers that keep to no order.

use super::*;

#[test]
fn readers_that_leave_their_order_get_the_rest_loaded() {
    let groups = vec![slices(1, 64, 1024).remove(0); 2];
    let setup = Setup {
        budget: 1 << 20,
        loader: 400,
        speeds: vec![90; 2],
        beacon: 64,
        groups,
    };
    let mut loose = 0;
    for seed in 1..5 {
        let mut node = Node::new(&setup);
        node.bears = true;
        for (reader, number) in node.readers.iter_mut().zip(1..) {
            shuffled(reader, 128, seed ^ number);
        }
        while !node.is_done() {
            node.advise();
            node.load(setup.loader);
            for group in 0..2 {
                node.read(group, &setup);
            }
        }
        loose += node
            .window
            .readers
            .iter()
            .filter(|it| !it.follows())
            .count();
        let all = total(&setup);
        let came: u64 = node.came.iter().flatten().map(|&it| u64::from(it)).sum();
        assert_eq!(came, all, "seed {seed}: nothing twice");
        // Where the loader does not expect readers, they come before it, with the kernel's readahead of 32 pages.
        let part = node.misses * 100 / all;
        assert!(part <= 15, "seed {seed}: {} of {all}", node.misses);
    }
    assert!(loose > 0, "they are borne in both ways");
}

#[test]
fn tensors_in_any_order_are_loaded_ahead_of_a_reader_with_little_memory() {
    let groups = slices(1, 64, 1024);
    let setup = Setup {
        budget: Pieces::new(&groups).total() * 30 / 100,
        loader: 400,
        speeds: vec![200],
        beacon: 64,
        groups,
    };
    for block in [1024, 4096] {
        for seed in 1..5 {
            let mut node = Node::new(&setup);
            (node.bears, node.touches) = (true, true);
            shuffled(&mut node.readers[0], block, seed);
            while !node.is_done() {
                node.advise();
                node.load(setup.loader);
                node.read(0, &setup);
            }
            let all = total(&setup);
            let came: u64 = node.came.iter().flatten().map(|&it| u64::from(it)).sum();
            let (missed, came) = (node.misses * 100 / all, came * 100 / all);
            // Without that, 50 to 70 % are missed.
            assert!(
                missed <= 20 && came <= 104,
                "blocks of {block}, seed {seed}: {missed} % missed, {came} % loaded"
            );
        }
    }
}

/// For example a reader of a zip's list of contents, before any load is issued.
#[test]
fn reader_that_starts_at_the_end_gets_the_rest_loaded() {
    let groups = vec![vec![Extent {
        file: 0,
        first: 0,
        pages: 80_000,
    }]];
    let mut window = Window::new(Arc::new(Pieces::new(&groups)), 1 << 22);
    let end = Extent {
        file: 0,
        first: 79_990,
        pages: 10,
    };
    window.hear(0, &end, Access::Miss, 0);
    let mut pages = 0;
    for _ in 0..3 {
        window.reissue_overtaken(|extent| extent.end() < 79_990);
        let loads = window.loads();
        pages += loads.iter().map(|it| it.extent.pages).sum::<u32>();
    }
    assert!(pages >= 79_000, "{pages}");
}

#[test]
fn a_reader_without_an_order_takes_no_room_from_what_others_need() {
    let extent = |first, pages| Extent {
        file: 0,
        first,
        pages,
    };
    let order: Vec<_> = (0..16).map(|at| extent(at * 512, 512)).collect();
    for (groups, dropped) in [
        (vec![order.clone()], 512),
        (vec![order.clone(), order[..8].to_vec()], 0),
    ] {
        let mut window = Window::new(Arc::new(Pieces::new(&groups)), 8 * 512);
        window.loads();
        window.loosen(0);
        window.hear(0, &extent(12 * 512, 32), Access::Miss, 0);
        window.hear(0, &extent(12 * 512 + 32, 32), Access::Miss, 0);
        window.loads();
        let drops = window.drops();
        assert_eq!(drops.iter().map(|it| it.pages).sum::<u32>(), dropped);
    }
}
