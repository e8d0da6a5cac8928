//! The process that hosts one policy for one directory.
//!
//! [`process`] runs it. `events` receives the backend's events and fills `queue`; `policy_thread` calls the
//! policy, which `watchdog` times and which uses `services`; `plan` checks what the policy answers,
//! and `loader` and `evictor` carry it out. `handle` is the other end: what the daemon or a session holds
//! of a worker, speaking in `messages`; `child` is the process itself, and `stop` bounds how long it takes to end.

pub(crate) mod budget;
pub(crate) mod child;
pub(crate) mod crashes;
mod events;
pub(crate) mod evictor;
mod guest;
pub(crate) mod handle;
pub(crate) mod keeper;
pub(crate) mod loader;
pub(crate) mod messages;
mod others;
mod output;
mod parting;
pub(crate) mod plan;
pub(crate) mod policy_thread;
pub mod process;
pub(crate) mod queue;
pub(crate) mod services;
pub(crate) mod stop;
pub(crate) mod watchdog;
mod xpus;

pub use process::run;
