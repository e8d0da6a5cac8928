//! Shares MAIO's templates among the nodes of a fleet, through object storage.
//!
//! MAIO reads and writes a directory, and has no network. This program has one: it copies what other nodes have
//! recorded into the folder of that directory which MAIO reads as the fleet's, and what this node has recorded into the
//! storage.
//!
//! ```text
//! config ─▶ serve ─ pace: when the next round is ─▶ round
//!                                                   ├─ decide: what to fetch, drop, put and delete ◀─ slot, quality
//!                                                   ├─ remote: object storage
//!                                                   └─ local: the directory, and what is known of both
//! ```
//!
//! [`decide`], [`pace`], [`quality`] and [`slot`] are pure. `tests/fleet.rs` has a thousand nodes run the same rounds
//! against one storage in memory.

pub mod config;
pub mod decide;
pub mod error;
pub mod known;
pub mod local;
pub mod pace;
pub mod quality;
pub mod remote;
pub mod round;
pub mod serve;
pub mod slot;
