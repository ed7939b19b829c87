//! What backends of [distlock](https://docs.rs/distlock) share for stores whose objects can be written on a condition: a
//! [`Register`], such as a bucket, a row, a key. It is all that a backend has to implement; the [`RegisterBackend`] does the
//! rest.
//!
//! # How it holds the lock
//! **One object for each lock** has the holders, the queue in the order of arrival, and the last fencing token. A client reads
//! it, changes what it says by the rules of [`lock_kit::Shares`], and writes it if it has not changed meanwhile; else it begins
//! again. So each change is atomic, and an entry that leaves (by a release, a cancel, a break, the end of a lease) leaves the lock in the
//! same write to those who can have it then. Waiters look at the object: the first three often, those behind them less often.
//!
//! * *The lease.* Each entry has a beat, which its client changes about four times in a lease. Others remove an entry whose beat
//!   has not changed for a lease, measured from when they first saw it; `slot.rs` says why that is safe. No clock of the store
//!   or of another machine is used.
//! * *Beats are in the object of the entries*, so that no entry is removed that has shown a sign of life meanwhile.
//! * *The anchor* of a grant is before the sending of the client's last beat that was confirmed. If that is long ago, a waiter
//!   beats once more before it relies on a grant.
//! * *The fencing token* counts up in the object, which is never deleted.
//!
//! # How a loss is noticed
//! The holder's next beat finds that its entry is gone: [`Broken`](lock_core::LossReason::Broken) if an operator did it,
//! [`Taken`](lock_core::LossReason::Taken) if another client holds the lock exclusively, else
//! [`Deleted`](lock_core::LossReason::Deleted). Before that the core ends a hold whose beats are not confirmed.
//!
//! # What happens at each failure
//! * *The outcome of a write is not known.* The client remembers what it was to replace. A cancel writes the object once more if
//!   that is still there, even if there is nothing to undo: then the first write cannot be carried out any more.
//! * *A holder or a waiter dies.* A client that watches the object removes it, a lease and 2 % after it first saw the last beat. A client that
//!   only tries now and then has to be the same client for so long: what was seen is not shared.
//! * *A client stands still.* Its hold ends by its own clock; its requests that arrive later find another version.
//! * *The store is away.* Holds are suspect, and end before others may remove them. A wait that ends then is an error. A release is
//!   repeated until it is answered, however long that takes: the store ends nothing by itself.
//! * *Other clients write at the same time.* All but one write in vain, and try again after a random pause. A store that refuses
//!   writes for ten seconds on the condition of what it shows itself contradicts itself: that is an error, and not retryable.
//! * *Many of a client wait.* They queue for its turn to write; renewals and releases pass them.
//! * *The object is deleted by others.* Holders lose the lock, and **tokens begin again**.
//!
//! # Invariants
//! * **No two contents of an object are the same**, and no object is deleted: what was replaced never returns.
//! * **A lease is over only by the clock that saw its last beat**, from the receipt of the first answer that showed it.
//! * **No anchor comes from an answer.**
//! * **No two beats of one entry are the same**, in no two writes, whatever became of them.
//! * **A client sends one write for an object at a time**, and none twice.
#![forbid(unsafe_code)]

mod attempt;
mod backend;
mod register;
mod slot;
mod state;
#[cfg(test)]
mod tests;

pub use backend::{RegisterBackend, RegisterLease, RegisterOptions};
pub use register::{Register, Stored, Written};
