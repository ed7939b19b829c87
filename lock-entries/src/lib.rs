//! What backends of [distlock](https://docs.rs/distlock) share for stores that order the entries of sessions, such as
//! numbered nodes that end with their session, or keys with a lease.
//!
//! Such a backend implements [`Entries`] for its client and [`Claim`] for what the client knows of one attempt; the
//! [`EntriesBackend`] does the rest.
//!
//! # How it holds the lock
//! Each attempt has **an entry of the client's session** in the line of the lock, and the store orders them. No entry can come before
//! an existing one, so those before the own one in any listing are all there will ever be; they only become fewer, or go on as
//! readers. [`standing`] says what follows: who holds, and what is in the way of whom. The value of an entry is a [`Record`]: which
//! client it is, what it asks for, and what becomes of its hold. A session that ends takes its entries with it.
//!
//! # How a holder learns of a loss
//! The entry of a hold is watched, from 20 ms after the grant on, so that a short hold costs no request for that. An entry that is gone
//! is a loss with [`Deleted`](lock_core::LossReason::Deleted), one that is marked as broken a loss with
//! [`Broken`](lock_core::LossReason::Broken), at once. How long a session certainly lives is the store's to say: it is what its
//! grants and renewals count from.
//!
//! # Where to find it
//!
//! | question | place |
//! |---|---|
//! | where does a lost connection become a loss? | in the backend, which tells the core of its session; an entry that is gone or marked becomes one in `hold.rs` |
//! | where is a token minted? | at the store: it is the place of the entry, which the backend gives with [`Granted`] |
//! | what does `break` send? | `breaking.rs` says what and when; how, the backend's file of that name |
//! | who gets the lock next? | [`standing`] in `order.rs` |
//! | how does an attempt wait? | `waiting.rs`, with what the backend sees |
//! | what becomes of a request without an answer? | `claim.rs`: the [`Traces`] of the attempt, and `undo` |
//!
//! # What happens at each failure
//! * *The outcome of a request is not known.* The [`Traces`] of the attempt say so from before the first request on. Its undoing is then
//!   a sweep, after which nothing is left and nothing appears later.
//! * *A hold is broken.* Its entry is marked, and removed when its holder has had time to stop. Another program's entry is removed at
//!   once, as its holder would not understand the mark.
//! * *The session ends.* The holds in it are lost with [`SessionClosed`](lock_core::LossReason::SessionClosed), and their releases say so.
//!
//! # Invariants
//! * **The claim of an attempt exists before its first request**, and is kept until certainly nothing is left.
//! * **No claim moves to another session.**
//! * **A value is only replaced if it is still the one that was read**: the mark of a break stays.
//! * **The own entry comes first**: where it has gone together with those before it, nothing is held.
#![forbid(unsafe_code)]

mod backend;
mod breaking;
mod claim;
mod entries;
mod hold;
mod order;
mod record;
#[cfg(test)]
mod tests;
mod waiting;

pub use backend::EntriesBackend;
pub use claim::{Claim, Claims, Failed, Outcome, Replaced, Rest, Traces};
pub use entries::{Breaks, Entries, Granted, Line, Lines, Marked, Shown};
pub use hold::{EntryLease, SHORT_HOLD};
pub use order::{InLine, Standing, excludes, fits, how_many_hold, standing};
pub use record::{Record, Told, newer};
pub use waiting::{Place, Waiting, wait};
