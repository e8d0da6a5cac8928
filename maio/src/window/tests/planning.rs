//! Measures what planning costs for the largest model.

use std::time::Instant;

use crate::template::models::{Model, WeightFormat};

use super::*;

/// `cargo test --release -p maio --lib -- --ignored --nocapture planning`
#[test]
#[ignore = "a measurement"]
fn planning_for_the_largest_model_is_quick() {
    let rss = || {
        let text = std::fs::read_to_string("/proc/self/statm").expect("it");
        let pages = text
            .split(' ')
            .nth(1)
            .and_then(|pages| pages.parse::<u64>().ok());
        pages.unwrap_or(0) * 4 / 1024
    };
    for (workers, of) in [(8, 16), (16, 16)] {
        let model = Model::deepseek_671b(WeightFormat::Safetensors);
        let groups: Vec<_> = (0..workers).map(|worker| model.reads(worker, of)).collect();
        drop(model);
        let (before, began) = (rss(), Instant::now());
        let pieces = Arc::new(Pieces::new(&groups));
        let cut = began.elapsed();
        let mut window = Window::new(Arc::clone(&pieces), 64 << 18);
        let first = Instant::now();
        let loads = window.loads().len();
        let first = first.elapsed();
        let held = rss() - before;
        // All readers go on in step, with a beacon each 4 MiB.
        let (mut events, mut slowest, began) = (0, std::time::Duration::ZERO, Instant::now());
        let mut at = vec![0; groups.len()];
        let mut unsaid = vec![0; groups.len()];
        while let Some(worker) = (0..at.len()).find(|&it| at[it] < groups[it].len().min(20_000)) {
            for reader in worker..at.len() {
                let Some(extent) = groups[reader].get(at[reader]) else {
                    continue;
                };
                at[reader] += 1;
                unsaid[reader] += extent.length();
                if unsaid[reader] < 4 << 20 {
                    continue;
                }
                unsaid[reader] = 0;
                let one = Instant::now();
                window.hear(reader, extent, Access::Read, 1024);
                window.loads();
                window.drops();
                slowest = slowest.max(one.elapsed());
                events += 1;
            }
        }
        println!(
            "{workers} workers: {} pieces in {cut:?}, first plan of {loads} ranges in {first:?}, {held} MiB; \
             {events} events of {:?}, at most {slowest:?}",
            pieces.len(),
            began.elapsed() / events.max(1),
        );
    }
}
