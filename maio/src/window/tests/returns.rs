//! Readers that read once more what they have passed.

use super::*;

/// A file of tensors whose first folios a reader maps before it reads them all: the order of its template, and the pages
/// in the order in which it needs them.
fn touched_first(tensors: u32, pages: u32) -> (Vec<Extent>, Vec<(u32, u32)>) {
    let part = |at: u32, first: u32, end: u32| Extent {
        file: 0,
        first: at * pages + first,
        pages: end - first,
    };
    let heads: Vec<_> = (0..tensors).map(|at| part(at, 0, 512)).collect();
    let rests = (0..tensors).map(|at| part(at, 512, pages));
    let order: Vec<_> = heads.iter().copied().chain(rests).collect();
    let mut needs = pages_of(&heads);
    needs.extend((0..tensors * pages).map(|page| (0, page)));
    (order, needs)
}

#[test]
fn a_second_pass_is_loaded_ahead_where_the_first_was_dropped() {
    let (order, needs) = touched_first(64, 1408);
    let all = 64 * 1408;
    for (part, most_misses, most_loaded) in [(30, 3, 145), (45, 3, 145), (200, 1, 100)] {
        let setup = Setup {
            groups: vec![order.clone()],
            budget: all * part / 100,
            loader: 400,
            speeds: vec![300],
            beacon: 64,
        };
        let mut node = Node::new(&setup);
        node.bears = true;
        node.readers[0].pages.clone_from(&needs);
        while !node.is_done() {
            node.advise();
            node.load(setup.loader);
            node.read(0, &setup);
        }
        let came: u64 = node.came.iter().flatten().map(|&it| u64::from(it)).sum();
        let (missed, loaded) = (node.misses * 100 / all, came * 100 / all);
        assert!(missed <= most_misses, "{part} %: {missed} % missed");
        assert!(loaded <= most_loaded, "{part} %: {loaded} % loaded");
        assert!(node.window.is_done(), "{part} %");
    }
}
