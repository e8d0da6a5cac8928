//! A thread that does I/O for the policy, so that no callback waits for any. It is asked questions in turn;
//! the policy takes the answers in its next callback, and is woken for those that it cannot go on without.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use ppc::Waker;

/// What comes of a question.
pub(crate) enum Reply<A> {
    Nothing,
    /// The policy takes it when it is called anyway.
    Quiet(A),
    /// The policy waits for it.
    Urgent(A),
}

/// The thread, as callbacks see it. When this goes the thread answers what it has been asked and ends.
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
                // A policy that has gone wants no answers, but what it asked for is done.
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

    /// Asks. A thread that has panicked does not answer.
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

    /// Whether there is an answer that the policy waits for. A wake that the policy asks for takes the
    /// place of the thread's, so look here after that.
    pub(crate) fn has_urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire) > 0
    }

    /// Waits until all that has been asked is done, and returns the answers that are left. False if the
    /// thread has panicked.
    pub(crate) fn finish(&mut self) -> (Vec<A>, bool) {
        self.questions = None;
        let sound = self.thread.take().is_none_or(|it| it.join().is_ok());
        (self.take(), sound)
    }
}

impl<Q, A> Drop for IoThread<Q, A> {
    fn drop(&mut self) {
        self.questions = None;
        if let Some(thread) = self.thread.take() {
            // A policy joins its threads; no callback follows that could tell of a panic.
            let _ = thread.join();
        }
    }
}
