//! The interface that a backend author implements.
//!
//! A [`Backend`] is a protocol and little else: how one attempt is made at the server, undone, renewed and released.
//! The core does, once, everything that is the same for all servers: the local mutex, the deadline of a wait, retries
//! and back-off, giving late grants back, the validity of a lease, notifying the holder.
//!
//! # The rules
//! 1. **An attempt is idempotent by its [`AttemptId`].** Sent twice, it holds once. After an error that left the
//!    outcome unknown, the core calls [`Backend::acquire`] again with the same request, or [`Backend::cancel`].
//! 2. **Every future may be dropped at every await.** After the core has dropped an `acquire`, it calls `cancel` with
//!    the same request until that returns `Ok`; then nothing of the attempt may be left, nor arrive later.
//! 3. **`cancel` undoes whatever happened**: nothing, a place in the queue, a grant.
//! 4. **Call [`AttemptHandle::queued`] when the server has confirmed that another client holds the lock** and that the
//!    attempt waits. A wait that ends before that call is reported as unreachable, because the client cannot know
//!    whether the lock was free.
//! 5. **The anchor of a lease is the moment before the client sent the request** that the server answered with the
//!    lease.
//! 6. **Requests are bounded.** If a server does not answer, that is an error after the backend's own request timeout,
//!    with the exception of `acquire` while it is queued.
//! 7. **A first poll is quick.** The first polls of `acquire`, `cancel` and `release` run on the caller's thread,
//!    inside the engine's runtime; anything that blocks has to run elsewhere. Everything else runs on the engine.
//! 8. **The number of a lost group is not used again.** Every later grant in that group is lost too.
//!
//! # Errors
//! An error says what could not be done (the core adds the lock and the server), why, and what helps. It contains no
//! secret.
//!
//! ```
//! use lock_core::{ErrorKind, LockError, LockName, Operation};
//!
//! let error = LockError::new(ErrorKind::Unreachable, Operation::Acquire)
//!     .on(&LockName::new("orders/42")?)
//!     .because("no answer within 2s")
//!     .remedy("check that the server runs")
//!     .retryable(); // the same call may succeed later
//! assert_eq!(
//!     error.to_string(),
//!     "cannot acquire lock \"orders/42\": the backend cannot be reached: no answer within 2s \
//!      (check that the server runs)"
//! );
//! # Ok::<(), LockError>(())
//! ```
//! Besides these, `caused_by` attaches the error of a client library, `during` replaces the operation, and
//! `LockError::lost` makes the error of a hold that was lost.
//!
//! `docs/backends/writing-one.md` goes through the in-memory backend as a worked example.

mod attempt;
mod attempt_handle;
mod backend;
mod backoff;
mod connection;
mod context;
mod erased;
mod grant;
mod validity;

pub use attempt::{AcquireRequest, AttemptId, InspectRequest, Mode, Wait};
pub use attempt_handle::AttemptHandle;
pub use backend::Backend;
pub use backoff::Backoff;
pub use connection::{ClientCertificate, Endpoint, TlsFiles, TlsOptions, split_port};
pub use context::BackendContext;
pub use grant::{Grant, GroupId, LeaseState, Released, Term};

pub use crate::runtime::race::within;
pub use crate::runtime::sync::Mutex;

pub(crate) use attempt_handle::{Reported, Waiters};
pub(crate) use context::Groups;
pub(crate) use erased::{AnyBackend, AnyLease, Erased};
pub(crate) use validity::{TIMER_SLIP, Validity};
