//! A thread that does I/O for the policy, so that no callback waits for any. It answers questions in turn;
//! the policy takes the answers in its next callback, and is woken for answers that it cannot continue without.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use ppc::Waker;

/// The answer to a question.
pub(crate) enum Reply<A> {
    Nothing,
    /// The policy takes it at its next call.
    Quiet(A),
    /// The policy waits for it.
    Urgent(A),
}

/// The callbacks' handle of the thread. When it is dropped, the thread answers the questions left and ends.
#[derive(Debug)]
pub(crate) struct IoThread<Q, A> {
    /// `None`: no more questions.
    questions: Option<Sender<Q>>,
    answers: Receiver<A>,
    /// Urgent answers that have not been taken.
    urgent: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl<Q: Send + 'static, A: Send + 'static> IoThread<Q, A> {
    pub(crate) fn start(
        name: &str,
        waker: Waker,
        mut answer: impl FnMut(Q) -> Reply<A> + Send + 'static,
    ) -> io::Result<Self> {
        let (questions, asked) = channel::<Q>();
        let (answers, taken) = channel();
        let urgent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&urgent);
        let work = move || {
            for question in asked {
                let (answer, waits) = match answer(question) {
                    Reply::Nothing => continue,
                    Reply::Quiet(answer) => (answer, false),
                    Reply::Urgent(answer) => (answer, true),
                };
                // A policy that is gone takes no answers, but its questions are still worked off.
                let _ = answers.send(answer);
                if waits {
                    count.fetch_add(1, Ordering::Release);
                    let _ = waker.wake(Duration::ZERO);
                }
            }
        };
        Ok(Self {
            thread: Some(Builder::new().name(name.to_owned()).spawn(work)?),
            questions: Some(questions),
            answers: taken,
            urgent,
        })
    }

    /// Queues a question. A thread that has panicked does not answer.
    pub(crate) fn ask(&self, question: Q) {
        if let Some(questions) = &self.questions {
            let _ = questions.send(question);
        }
    }

    /// The answers there are.
    pub(crate) fn take(&self) -> Vec<A> {
        self.urgent.store(0, Ordering::Release);
        self.answers.try_iter().collect()
    }

    /// The next answer, if it comes within that time.
    pub(crate) fn wait(&self, at_most: Duration) -> Option<A> {
        self.answers.recv_timeout(at_most).ok()
    }

    /// Whether there is an answer that the policy waits for. A wake that the policy asks for replaces
    /// the thread's, so check this afterwards.
    pub(crate) fn has_urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire) > 0
    }

    /// Waits until all questions are answered, and returns the remaining answers. False if the
    /// thread has panicked.
    pub(crate) fn finish(&mut self) -> (Vec<A>, bool) {
        self.questions = None;
        let sound = self.thread.take().is_none_or(|it| it.join().is_ok());
        (self.take(), sound)
    }

    /// Does not wait for a thread that may never end: it ends with the process at the latest.
    pub(crate) fn leave(mut self) {
        self.thread = None;
    }
}

impl<Q, A> Drop for IoThread<Q, A> {
    fn drop(&mut self) {
        self.questions = None;
        if let Some(thread) = self.thread.take() {
            // A policy joins its threads; no callback follows that could report a panic.
            let _ = thread.join();
        }
    }
}
