//! Which callbacks a policy has: those whose traits it implements, found by the compiler.
//!
//! [`Found`] has its own constant where the trait is implemented, and that of [`Missing`] where it
//! is not. The compiler chooses by the type that it knows, so the question is asked by a macro, where
//! the type has a name, and not by a function for all types.

use std::fmt;
use std::marker::PhantomData;

use super::guest::{on_configure, on_evict, on_prefetch};
use super::{Advise, Set};
use crate::{Configure, Evict, Policy, Prefetch};

/// A callback of the policy `P`; only [`Found`] makes them.
pub struct Callback<P, F>(F, PhantomData<fn(P)>);

// Not derived: P itself need not be copied for that.
impl<P, F: Copy> Copy for Callback<P, F> {}

impl<P, F: Copy> Clone for Callback<P, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P, F> fmt::Debug for Callback<P, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callback").finish_non_exhaustive()
    }
}

/// The callbacks of a policy, by what it implements. [`callbacks!`](crate::callbacks) implements it.
pub trait Callbacks: Policy {
    /// There if it is [`Prefetch`].
    const PREFETCH: Option<Callback<Self, Advise>>;
    /// There if it is [`Evict`].
    const EVICT: Option<Callback<Self, Advise>>;
    /// There if it is [`Configure`].
    const CONFIGURE: Option<Callback<Self, Set>>;
}

/// What `P` implements.
#[derive(Debug)]
pub struct Found<P>(PhantomData<fn(P)>);

impl<P: Prefetch> Found<P> {
    /// It prefetches.
    pub const PREFETCH: Option<Callback<P, Advise>> = Some(Callback(on_prefetch::<P>, PhantomData));
}

impl<P: Evict> Found<P> {
    /// It evicts.
    pub const EVICT: Option<Callback<P, Advise>> = Some(Callback(on_evict::<P>, PhantomData));
}

impl<P: Configure> Found<P> {
    /// It takes settings while it runs.
    pub const CONFIGURE: Option<Callback<P, Set>> = Some(Callback(on_configure::<P>, PhantomData));
}

/// What `P` does not implement.
pub trait Missing<P> {
    /// It does not prefetch.
    const PREFETCH: Option<Callback<P, Advise>> = None;
    /// It does not evict.
    const EVICT: Option<Callback<P, Advise>> = None;
    /// It takes no settings while it runs.
    const CONFIGURE: Option<Callback<P, Set>> = None;
}

impl<P> Missing<P> for Found<P> {}

/// As C has it.
pub(super) const fn raw<P, F: Copy>(callback: Option<Callback<P, F>>) -> Option<F> {
    match callback {
        Some(Callback(function, _)) => Some(function),
        None => None,
    }
}
