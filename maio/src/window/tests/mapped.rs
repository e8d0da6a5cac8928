//! Readers that read through mappings.

use super::*;

/// Runs readers of mappings. A reader is heard when it comes to a page table, and has then mapped all of it that is
/// cached.
fn run_mapped(setup: &Setup, head_start: u64) -> Node {
    let mut node = Node::new(setup);
    let count = node.readers.len();
    let (mut mapped, mut unsaid) = (vec![(0, 0); count], vec![0; count]);
    node.advise();
    node.load(u32::try_from(head_start).expect("small"));
    for turn in 0.. {
        assert!(turn < 100_000, "no end");
        node.load(setup.loader);
        for group in 0..count {
            for _ in 0..setup.speeds[group] {
                let reader = &node.readers[group];
                let Some(&(file, page)) = reader.pages.get(reader.at) else {
                    break;
                };
                let (of, until) = mapped[group];
                if file != of || page >= until || page < until.saturating_sub(TABLE) {
                    if !node.cached[file as usize][page as usize] {
                        node.miss(group, file, page);
                    }
                    let cached = &node.cached[file as usize];
                    let end = ((page / TABLE + 1) * TABLE)
                        .min(u32::try_from(cached.len()).expect("small"));
                    let run = (page..end).take_while(|&it| cached[it as usize]).count();
                    let run = u32::try_from(run).expect("small");
                    mapped[group] = (file, page + run);
                    unsaid[group] += run;
                    if unsaid[group] >= setup.beacon {
                        let read = u64::from(std::mem::take(&mut unsaid[group]));
                        let last = Extent {
                            file,
                            first: page + run - 1,
                            pages: 1,
                        };
                        node.window.hear(group, &last, Access::Beacon, read);
                        node.advise();
                    }
                }
                node.readers[group].at += 1;
            }
        }
        node.advise();
        if node.is_done() {
            break;
        }
    }
    node
}

#[test]
fn the_window_slides_for_slices_that_are_read_through_mappings() {
    for speeds in [vec![60; 4], vec![60, 30, 90, 45]] {
        let mut groups = slices(4, 48, 256);
        for extent in groups.iter_mut().flatten() {
            // Moves all slices into one file.
            extent.first += extent.file * 8 * 256;
            extent.file = 0;
        }
        let setup = Setup {
            groups,
            budget: 48 * 256 * 2 / 5,
            loader: 200,
            speeds,
            beacon: 86,
        };
        let node = run_mapped(&setup, 48 * 256 / 3);
        assert_eq!(node.misses, 0, "of {}", total(&setup));
        assert!(!node.over_budget);
    }
}
