//! Cache policies in Rust.
//!
//! A policy receives page-cache misses and decides what to load and what to drop. The
//! contract between it and its host is `policies/ppc.h`, described there in prose; this crate is
//! that contract in Rust, for both sides.
//!
//! A policy is a type, its [`Policy`] implementation, those of [`Prefetch`], [`Evict`] and
//! [`Configure`] that it needs, and one line that makes a library of it:
//!
//! ```
//! use ppc::{Event, Host, Io, Plan, Policy, Prefetch, Result, Settings};
//!
//! /// Reads one length ahead.
//! struct Ahead;
//!
//! impl Policy for Ahead {
//!     const NAME: &'static std::ffi::CStr = c"ahead";
//!     const VERSION: &'static std::ffi::CStr = c"1";
//!     const DESCRIPTION: &'static std::ffi::CStr = c"Reads one length ahead";
//!
//!     fn init(_: &Host<'_>, _: &mut Settings, _: &mut Plan<'_>) -> Result<Self> {
//!         Ok(Self)
//!     }
//! }
//!
//! impl Prefetch for Ahead {
//!     fn prefetch(
//!         &mut self,
//!         _: &Host<'_>,
//!         event: Option<&Event>,
//!         plan: &mut Plan<'_>,
//!     ) -> Result<()> {
//!         match event {
//!             Some(event) => {
//!                 let ahead = event.end()..event.end() + event.length;
//!                 plan.add(Io::load(event.file, ahead).by(event.process))
//!             }
//!             None => Ok(()),
//!         }
//!     }
//! }
//!
//! ppc::export_policy!(Ahead);
//!
//! // And its unit test, without a daemon:
//! use ppc::{Kind, testing::FakeHost};
//! let host = FakeHost::new().file("model", 1 << 20);
//! let (mut ahead, _) = host.start::<Ahead>(&[])?;
//! let miss = Event::new(Kind::Miss, host.id("model"), 0, 4096);
//! let next = Io::load(miss.file, 4096..8192).by(1);
//! assert_eq!(ahead.prefetch(Some(&miss))?, Some(vec![next]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`host`] is the other side: it loads a policy, checks it and calls it. [`testing`] is a host
//! that only records.
//!
//! # Unsafe code
//!
//! It is confined to `ffi.rs` and `ffi/`, and to the one symbol that [`export_policy!`] makes. No
//! panic crosses the contract in either direction: it is logged and becomes `-EIO`.

mod error;
#[allow(
    unsafe_code,
    non_camel_case_types,
    reason = "the contract; every other module goes through it"
)]
pub mod ffi;
mod policy;
pub mod ranks;
mod settings;
pub mod testing;
mod types;

pub use error::{Error, LoadError, Result};
pub use ffi::callbacks::Callbacks;
pub use ffi::guest::{Host, Plan};
pub use ffi::waker::Waker;
pub use policy::{Configure, Evict, Policy, Prefetch};
pub use ranks::Ranks;
pub use settings::Settings;
pub use types::{
    Entry, Event, Features, FileId, FileInfo, Io, IoFlags, Kind, Kinds, Level, Memory, Op, Report,
    Xpu,
};

/// The host's side: copying, checking and calling a policy.
pub mod host {
    pub use crate::ffi::embed::{Instance, Services, Table};
}

/// Finds out which of [`Prefetch`], [`Evict`] and [`Configure`] a [`Policy`] implements. Once for a
/// type; [`export_policy!`] does it, so that only a policy outside a library needs it.
#[macro_export]
macro_rules! callbacks {
    ($policy:ty) => {
        const _: () = {
            #[allow(
                unused_imports,
                reason = "a policy that implements everything misses nothing"
            )]
            use $crate::ffi::callbacks::Missing as _;
            use $crate::ffi::callbacks::{Callback, Found};
            use $crate::ffi::{Advise, Set};

            impl $crate::Callbacks for $policy {
                const PREFETCH: Option<Callback<Self, Advise>> = Found::<$policy>::PREFETCH;
                const EVICT: Option<Callback<Self, Advise>> = Found::<$policy>::EVICT;
                const CONFIGURE: Option<Callback<Self, Set>> = Found::<$policy>::CONFIGURE;
            }
        };
    };
}

/// Exports a [`Policy`] as `ppc_policy`, which makes the library a policy. Use it once in a library, at
/// its top level.
#[macro_export]
macro_rules! export_policy {
    ($policy:ty) => {
        $crate::callbacks!($policy);

        /// The symbol that the host looks up.
        #[allow(
            unsafe_code,
            non_upper_case_globals,
            reason = "the contract gives this name, and nothing else of the library has it"
        )]
        // SAFETY: a library has one policy, and no other symbol of this name.
        #[unsafe(no_mangle)]
        pub static ppc_policy: $crate::ffi::ppc_policy = $crate::ffi::ppc_policy::of::<$policy>();
    };
}
