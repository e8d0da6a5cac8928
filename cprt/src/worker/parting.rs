//! Waits for a worker's threads to end.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long all threads of one kind may take.
pub(super) const PATIENCE: Duration = Duration::from_millis(700);

/// Waits at most `patience` for threads to end, and returns those that have not. The kernel may hold up a thread that
/// reads from a file system whose server does not answer: then the process ends without it.
pub(super) fn join(threads: Vec<JoinHandle<()>>, patience: Duration) -> Vec<JoinHandle<()>> {
    let since = Instant::now();
    let mut nap = Duration::from_micros(100);
    let mut left = threads;
    loop {
        let (ended, running) = left.into_iter().partition(JoinHandle::is_finished);
        left = running;
        let ended: Vec<_> = ended;
        for thread in ended {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
        if left.is_empty() || since.elapsed() >= patience {
            return left;
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn stuck_thread_is_returned_after_the_timeout() {
        let (to, from) = channel::<()>();
        let stuck = std::thread::spawn(move || {
            let _ = from.recv();
        });
        let quick = std::thread::spawn(|| ());
        let since = Instant::now();
        let left = join(vec![stuck, quick], Duration::from_millis(50));
        assert_eq!(left.len(), 1);
        assert!(since.elapsed() < Duration::from_secs(5));
        drop(to);
        assert!(join(left, Duration::from_secs(10)).is_empty());
    }
}
