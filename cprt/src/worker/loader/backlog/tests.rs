use super::super::background::SMALLEST;
use super::*;

fn range(process: u32, offset: u64, length: u64) -> (usize, LoadRange) {
    let file = FileId(1);
    let range = LoadRange {
        span: Span {
            file,
            offset,
            length,
        },
        process,
        priority: 0,
        charge: None,
        large: false,
        hold: false,
        replaces: false,
    };
    (0, range)
}

fn urgent(mut range: (usize, LoadRange)) -> (usize, LoadRange) {
    range.1.priority = 1;
    range
}

fn instead(mut range: (usize, LoadRange)) -> (usize, LoadRange) {
    range.1.replaces = true;
    range
}

fn taken(backlog: &mut Backlog) -> Vec<(u32, u64, u64)> {
    let mut all = Vec::new();
    while let Some(chunk) = backlog.take(0) {
        let LoadRange { process, span, .. } = chunk.range;
        all.push((process, span.offset, span.length));
        backlog.done(0, chunk.cookie, None);
    }
    all
}

#[test]
fn ranges_become_chunks_at_boundaries() {
    let mut backlog = Backlog::new(1, 4, 10);
    backlog.submit(&[range(1, 5, 20), range(1, 25, 10), range(1, 50, 3)]);
    assert_eq!(backlog.queued(), 33);
    let expected = [(1, 5, 5), (1, 10, 10), (1, 20, 10), (1, 30, 5), (1, 50, 3)];
    assert_eq!(taken(&mut backlog), expected);
    assert_eq!(backlog.queued(), 0);
    assert!(!backlog.has_work(0));
}

#[test]
fn processes_take_turns_and_urgent_ones_go_first() {
    let mut backlog = Backlog::new(1, 4, 10);
    backlog.submit(&[range(1, 0, 30)]);
    backlog.submit(&[range(2, 100, 20)]);
    backlog.submit(&[urgent(range(3, 200, 20))]);
    let order: Vec<_> = taken(&mut backlog).iter().map(|chunk| chunk.0).collect();
    assert_eq!(order, [3, 3, 1, 2, 1, 2, 1]);
}

#[test]
fn when_threads_are_short_what_replaces_takes_the_place_of_all_of_its_process() {
    let mut backlog = Backlog::new(1, 2, 10);
    assert_eq!(backlog.submit(&[range(1, 0, 100)]), Aside::default());
    backlog.submit(&[range(2, 500, 20)]);
    let first = backlog.take(0).expect("work");
    let _of_another = backlog.take(0).expect("work");
    let aside = backlog.submit(&[instead(range(1, 1000, 10))]);
    assert_eq!((aside.bytes, aside.stop), (90, vec![first.cookie]));
    assert_eq!(backlog.rest(first, 4), None, "no process wants it any more");
    assert_eq!(taken(&mut backlog), [(1, 1000, 10), (2, 510, 10)]);
}

#[test]
fn shared_range_is_loaded_once_while_any_process_wants_it() {
    let mut backlog = Backlog::new(2, 2, 10);
    backlog.submit(&[range(1, 0, 40)]);
    backlog.submit(&[range(2, 0, 40)]);
    let span = |chunk: Option<Chunk>| chunk.map(|it| (it.range.process, it.range.span.offset));
    let first = backlog.take(0).expect("work");
    assert_eq!(span(Some(first)), Some((1, 0)));
    assert_eq!(
        span(backlog.take(0)),
        Some((1, 10)),
        "2 waits for the first"
    );
    assert_eq!(backlog.queued(), 50);
    // Threads are scarce: the first one continues for process 2, and the second one stops.
    let aside = backlog.submit(&[instead(range(1, 500, 10))]);
    assert_eq!((aside.bytes, aside.stop.len()), (20, 1));
    assert!(backlog.rest(first, 0).is_some());
    backlog.submit(&[instead(range(2, 700, 10))]);
    assert!(
        backlog.rest(first, 0).is_none(),
        "no process wants it any more"
    );
    let third = backlog.take(0).expect("work");
    backlog.submit(&[(1, range(3, third.range.span.offset, 5).1)]);
    assert_eq!(span(backlog.take(1)), None, "another group loads it");
}

#[test]
fn span_near_a_load_in_flight_is_recognised() {
    let mut backlog = Backlog::new(1, 2, 10);
    backlog.submit(&[range(1, 100, 100)]);
    let about = |backlog: &Backlog, offset| backlog.is_about(&range(2, offset, 1).1.span);
    assert!(!about(&backlog, 100), "nothing is in flight");
    backlog.take(0).expect("work");
    assert!(about(&backlog, 100) && about(&backlog, 179) && about(&backlog, 21));
    assert!(!about(&backlog, 180) && !about(&backlog, 10));
    let mut other = range(2, 100, 1).1.span;
    other.file = FileId(2);
    assert!(!backlog.is_about(&other));
}

#[test]
fn load_without_replace_waits_for_earlier_ranges() {
    let mut backlog = Backlog::new(1, 1, 10);
    backlog.submit(&[range(1, 0, 20)]);
    let first = backlog.take(0).expect("work");
    assert_eq!(backlog.submit(&[range(1, 20, 10)]), Aside::default());
    backlog.done(0, first.cookie, None);
    assert_eq!(taken(&mut backlog), [(1, 10, 10), (1, 20, 10)]);
}

#[test]
fn cancelled_bytes_are_not_loaded() {
    let mut backlog = Backlog::new(1, 1, 100);
    backlog.submit(&[range(1, 0, 30), range(2, 5, 10)]);
    let gone = |offset, length| Span {
        file: FileId(1),
        offset,
        length,
    };
    assert_eq!(backlog.cancel(&[gone(5, 10), gone(29, 100)]), 21);
    assert_eq!(backlog.queued(), 19);
    let mut other = gone(0, 100);
    other.file = FileId(2);
    assert_eq!(backlog.cancel(&[other, gone(30, 5)]), 0);
    assert_eq!(taken(&mut backlog), [(1, 0, 5), (1, 15, 14)]);
    assert_eq!(backlog.cancel(&[gone(0, u64::MAX)]), 0);
}

#[test]
fn with_threads_to_spare_only_a_jump_within_a_file_pushes_aside() {
    let mut backlog = Backlog::new(1, 2, 10);
    backlog.submit(&[range(1, 0, 20)]);
    backlog.take(0).expect("work");
    let mut other = instead(range(1, 0, 30));
    other.1.span.file = FileId(2);
    assert_eq!(backlog.submit(&[other]), Aside::default());
    let aside = backlog.submit(&[instead(range(1, 50, 5))]);
    assert_eq!(
        (aside.bytes, aside.stop),
        (10, vec![]),
        "loads in flight continue"
    );
    assert_eq!(backlog.queued(), 35);
}

#[test]
fn load_without_a_process_replaces_nothing() {
    let mut backlog = Backlog::new(1, 1, 10);
    backlog.submit(&[range(0, 0, 20)]);
    backlog.take(0).expect("work");
    assert_eq!(
        backlog.submit(&[instead(range(0, 100, 10))]),
        Aside::default()
    );
    assert_eq!(backlog.queued(), 20);
}

#[test]
fn rest_of_a_held_chunk_is_loaded_first() {
    let mut backlog = Backlog::new(1, 1, 10);
    backlog.submit(&[range(1, 0, 20)]);
    let chunk = backlog.take(0).expect("work");
    assert_eq!(backlog.hold(), [chunk.cookie]);
    assert!(backlog.marked());
    let rest = backlog.rest(chunk, 4);
    assert!(rest.is_some());
    backlog.done(0, chunk.cookie, rest);
    assert!(!backlog.marked());
    assert_eq!(taken(&mut backlog), [(1, 4, 6), (1, 10, 10)]);
}

#[test]
fn groups_are_apart_and_files_forgotten_in_all() {
    let mut backlog = Backlog::new(2, 1, 10);
    let (_, other) = range(1, 0, 10);
    backlog.submit(&[(1, other), (7, other)]);
    assert!(!backlog.has_work(0) && backlog.has_work(1) && !backlog.has_work(7));
    assert!(backlog.take(0).is_none());
    assert_eq!(backlog.forget(FileId(1)), 10);
    assert!(backlog.take(1).is_none());
}

#[test]
fn oldest_ranges_are_dropped_when_the_backlog_is_full() {
    let mut backlog = Backlog::new(1, 1, 10);
    let many: Vec<_> = (0..MAX_RANGES as u64 + 5)
        .map(|i| range(0, i * 2, 1))
        .collect();
    assert_eq!(backlog.submit(&many).bytes, 5);
    assert_eq!(backlog.queued(), MAX_RANGES as u64);
    let chunk = backlog.take(0).expect("work");
    assert_eq!(chunk.range.span.offset, 10, "the oldest went");
}

#[test]
fn while_paused_all_threads_are_busy() {
    let mut backlog = Backlog::new(1, 2, 10);
    backlog.pause(true);
    backlog.submit(&[range(1, 0, 30)]);
    assert_eq!(backlog.submit(&[instead(range(1, 50, 5))]).bytes, 30);
    assert_eq!(backlog.queued(), 5);
}

#[test]
fn clear_drops_the_queue_and_returns_loads_in_flight() {
    let mut backlog = Backlog::new(1, 2, 10);
    backlog.submit(&[range(1, 0, 30)]);
    let chunk = backlog.take(0).expect("work");
    let aside = backlog.clear();
    assert_eq!((aside.bytes, aside.stop), (20, vec![chunk.cookie]));
    assert!(backlog.take(0).is_none());
}

#[test]
fn background_load_comes_last_in_pieces_sized_by_speed() {
    let mut backlog = Backlog::new(1, 4, 4 * SMALLEST);
    let mut behind = range(0, 0, 3 * SMALLEST);
    behind.1.priority = -1;
    assert!(!backlog.is_for_background(), "nothing waits");
    backlog.submit(&[behind]);
    assert!(backlog.is_for_background());
    backlog.submit(&[range(1, 8 * SMALLEST, 4 * SMALLEST)]);
    assert!(!backlog.is_for_background());
    let pieces = [
        (1, 8 * SMALLEST, 4 * SMALLEST),
        (0, 0, SMALLEST),
        (0, SMALLEST, SMALLEST),
        (0, 2 * SMALLEST, SMALLEST),
    ];
    assert_eq!(taken(&mut backlog), pieces);
    for _ in 0..4 {
        backlog.background_loaded(SMALLEST, std::time::Duration::from_micros(100));
    }
    let mut behind = range(0, 0, 3 * SMALLEST);
    behind.1.priority = -1;
    backlog.submit(&[behind]);
    let pieces = [(0, 0, 2 * SMALLEST), (0, 2 * SMALLEST, SMALLEST)];
    assert_eq!(taken(&mut backlog), pieces, "the device is fast");
}

#[test]
fn cancelling_16384_spans_takes_under_three_seconds() {
    // Every second page waits, and every third one is dropped.
    let (ranges, spans) = (1 << 16, 1 << 14);
    let mut backlog = Backlog::new(1, 4, 10);
    let plan: Vec<_> = (0..ranges).map(|page| range(1, page * 2, 1)).collect();
    backlog.submit(&plan);
    let gone: Vec<_> = (0..spans)
        .rev()
        .map(|page| Span {
            file: FileId(1),
            offset: page * 3,
            length: 1,
        })
        .collect();
    let since = std::time::Instant::now();
    // Of those, every second one waits.
    assert_eq!(backlog.cancel(&gone), spans / 2);
    let took = since.elapsed();
    assert!(took < std::time::Duration::from_secs(3), "{took:?}");
    assert_eq!(backlog.queued(), ranges - spans / 2);
    let left = taken(&mut backlog);
    assert_eq!(left[..4], [(1, 2, 1), (1, 4, 1), (1, 8, 1), (1, 10, 1)]);
}

#[test]
fn holes_of_any_order_and_overlap_are_cut_out() {
    let mut backlog = Backlog::new(1, 4, 100);
    backlog.submit(&[range(1, 10, 50), range(1, 70, 10)]);
    let gone = |offset, length| Span {
        file: FileId(1),
        offset,
        length,
    };
    let spans = [
        gone(55, 20),
        gone(20, 5),
        gone(0, 12),
        gone(22, 8),
        gone(40, 0),
    ];
    assert_eq!(backlog.cancel(&spans), 2 + 10 + 5 + 5);
    let expected = [(1, 12, 8), (1, 30, 25), (1, 75, 5)];
    assert_eq!(taken(&mut backlog), expected);
}
