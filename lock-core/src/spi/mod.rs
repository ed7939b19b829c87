//! What a backend author writes.
//!
//! A [`Backend`] is a protocol and little else: how one attempt is made at the server, undone, renewed and released.
//! Everything that is the same for all servers is done by the core, once: the local mutex, the deadline of a wait,
//! retries and back-off, giving late grants back, the validity of a lease, telling the holder.
//!
//! # The rules
//! 1. **An attempt is idempotent by its [`AttemptId`].** Sent twice, it holds once. After an error that left the outcome
//!    unknown the core calls [`Backend::acquire`] again with the same request, or [`Backend::cancel`].
//! 2. **Every future may be dropped at every await.** After the core has dropped an `acquire` it calls `cancel` with the
//!    same request, until that answers `Ok`; then nothing of the attempt may be left, nor come later.
//! 3. **`cancel` undoes whatever happened**: nothing, a place in the queue, a grant.
//! 4. **Say [`Signals::queued`] when the server has confirmed that someone else holds the lock** and that the attempt
//!    waits. A wait that ends without that having been said is reported as unreachable, because nobody knows
//!    whether the lock was free.
//! 5. **The anchor of a lease is the moment before the request was sent** that the server answered with the lease.
//! 6. **Requests are bounded.** A server that does not answer is an error after the backend's own request timeout, with
//!    the exception of `acquire` while it is queued.
//! 7. **A first poll is quick.** That of `acquire`, `cancel` and `release` runs on the thread of whoever calls, with the
//!    engine's runtime entered; anything that blocks goes elsewhere. Everything else runs on the engine.
//! 8. **The number of a group that is lost is not used again.** Whatever is granted in it later is lost too.
//!
//! `docs/backends/writing-one.md` goes through the in-memory backend as a worked example.

mod attempt;
mod backend;
mod backoff;
mod erased;
mod grant;
mod host;
mod signals;
mod validity;

pub use attempt::{AcquireRequest, AttemptId, InspectRequest, Mode, Wait};
pub use backend::Backend;
pub use backoff::Backoff;
pub use grant::{Grant, GroupId, LeaseState, Released, Term};
pub use host::Host;
pub use signals::Signals;

pub(crate) use erased::{AnyBackend, AnyLease, Erased};
pub(crate) use host::Groups;
pub(crate) use signals::{Reported, Waiters};
pub(crate) use validity::{TIMER_SLIP, Validity};
