//! The policies of a command: one for its model, and one for everything else that it reads from its start on.

use std::panic::resume_unwind;

use cprt::control::config::MemoryConfig;
use cprt::control::kind::BackendKind;
use cprt::machine::memory::{self, LimitSource, MemoryState};
use cprt::session::namespace::User;
use cprt::session::{Options, Session};

use super::{Backends, start};
use crate::args::Run;
use crate::failure::Result;

/// The least memory that a command needs to have a policy. Worker and runtime take some 40 MB, the kernel's memory for
/// them included, which the command would miss.
pub(super) const LEAST_MEMORY: u64 = 256 << 20;

/// The limit of the memory cgroup that ppcctl and the command are in, if it leaves too little for both.
pub(super) fn little_memory() -> Option<u64> {
    let watch = memory::Watch::new(MemoryConfig::default(), memory::Roots::default());
    watch.follow_process(std::process::id());
    too_little(&watch.sample(0))
}

fn too_little(memory: &MemoryState) -> Option<u64> {
    let is_limited = matches!(
        memory.source,
        LimitSource::Cgroup(_) | LimitSource::WorkingSet(_)
    );
    (is_limited && memory.limit < LEAST_MEMORY).then_some(memory.limit)
}

/// The sessions of a command: either, both, or none.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    model: Option<Session>,
    start: Option<Session>,
    /// Load the model before the command opens it, but after the files that the command needs first.
    model_waits: bool,
}

impl Sessions {
    /// Starts the sessions that are wanted and possible; for one that is not possible, the reason has been printed.
    pub(super) fn begin(
        wanted: &Run,
        model: Option<&Options>,
        start: Option<&Options>,
    ) -> Result<Self> {
        let beside = model.is_some();
        let model = model.and_then(|options| Some((options, super::backends(wanted, options)?)));
        // The observe backend leaves this process as it is. Others move it into another mount namespace, which the
        // policy of the start has to be in as well, and which an ordinary user can enter only with a single thread.
        let listens =
            |(_, backends): &(_, Backends<'_>)| backends.first == Some(BackendKind::Observe);
        let at_once = model.as_ref().is_some_and(listens);
        let for_model = || {
            model.map_or(Ok(None), |(options, backends)| {
                super::start(wanted, options, backends)
            })
        };
        let for_start = || start.map_or(Ok(None), |options| start::start(wanted, options, beside));
        let (of_model, of_start) = if at_once {
            both_at_once(for_model, for_start)
        } else {
            (Ok(for_model()?), for_start())
        };
        let (of_model, of_start) = both_or_neither(of_model, of_start)?;
        let mut sessions = Self {
            model_waits: of_model.is_some() && start::begins_early(wanted),
            model: of_model,
            start: of_start,
        };
        sessions.go_on();
        Ok(sessions)
    }

    /// Has the model loaded if its turn has come. Returns whether the turn is still to come.
    pub(super) fn go_on(&mut self) -> bool {
        if !self.model_waits {
            return false;
        }
        let start = self.start.as_ref().and_then(Session::stats);
        let start = start.unwrap_or_default();
        let waits = start.queued_bytes + start.in_flight_bytes > 0;
        if let Some(model) = &self.model
            && std::mem::replace(&mut self.model_waits, waits)
            && !waits
        {
            // In the background: what the command imports and no earlier start has read would wait for the weights.
            // A policy that failed, or does not know this setting, begins when the model is opened.
            let settings = [("begin".to_owned(), "early".to_owned())].into();
            let _ = model.configure(&settings);
        }
        waits
    }

    /// The session that is reported: the model's, if there is one.
    pub(super) fn first(&self) -> Option<&Session> {
        self.model.as_ref().or(self.start.as_ref())
    }

    /// The session of the start, if the model has one as well.
    pub(super) fn second(&self) -> Option<&Session> {
        self.start.as_ref().filter(|_| self.model.is_some())
    }

    /// The user that the command has to be changed back to.
    pub(super) fn user(&self) -> Option<User> {
        self.model.as_ref().and_then(Session::user)
    }

    /// Ends both policies concurrently. Returns why one had ended early, if it had.
    pub(super) fn end(self) -> Option<String> {
        let Self { model, start, .. } = self;
        std::thread::scope(|scope| {
            let other = start.map(|start| scope.spawn(|| start.end()));
            let fault = model.and_then(Session::end);
            // A panic in the thread has been printed already.
            fault.or(other.and_then(|it| it.join().unwrap_or(None)))
        })
    }
}

/// Runs both, the first on this thread: what it changes in this process, later children inherit.
fn both_at_once<A, B: Send>(
    first: impl FnOnce() -> A,
    second: impl FnOnce() -> B + Send,
) -> (A, B) {
    std::thread::scope(|scope| {
        let second = scope.spawn(second);
        let first = first();
        let second = second.join();
        (first, second.unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// If one of them failed, ends the other one.
fn both_or_neither(
    model: Result<Option<Session>>,
    start: Result<Option<Session>>,
) -> Result<(Option<Session>, Option<Session>)> {
    match (model, start) {
        (Ok(model), Ok(start)) => Ok((model, start)),
        (Ok(left), Err(failure)) | (Err(failure), Ok(left)) => {
            let _ = left.map(Session::end);
            Err(failure)
        }
        (Err(failure), Err(_)) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn only_a_cgroup_leaves_too_little() {
        let cgroup = LimitSource::Cgroup(Path::new("/sys/fs/cgroup/a").into());
        let table = [
            (LEAST_MEMORY - 1, cgroup.clone(), Some(LEAST_MEMORY - 1)),
            (LEAST_MEMORY, cgroup, None),
            // A whole machine that is as small: its user has chosen to run a policy.
            (1 << 20, LimitSource::Host, None),
        ];
        for (limit, source, little) in table {
            let memory = MemoryState {
                limit,
                source,
                used: 0,
                threshold: limit,
                available: limit,
                over: false,
                pressure: None,
            };
            assert_eq!(too_little(&memory), little);
        }
    }
}
