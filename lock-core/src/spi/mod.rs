//! The interface that a backend author implements.
//!
//! A [`Backend`] is a protocol and little else: how one attempt is made at the server, undone, renewed and released.
//! The core does, once, everything that is the same for all servers: the local line of waiters, the deadline of a wait, retries
//! and back-off, giving late grants back, the validity of a lease, notifying the holder.
//!
//! # The rules
//! 1. **An attempt is idempotent by its [`AttemptId`].** Sent twice, it holds once. After an error that left the
//!    outcome unknown, the core calls [`Backend::acquire`] again with the same request, or [`Backend::cancel`].
//! 2. **Every future may be dropped at every await.** After the core has dropped an `acquire`, it calls `cancel` with
//!    the same request until that returns `Ok`; then nothing of the attempt may be left, nor arrive later.
//! 3. **`cancel` undoes whatever happened**: nothing, a place in the queue, a grant.
//! 4. **Call [`AcquireRequest::queued`] when the server has confirmed that another client holds the lock** and that the
//!    attempt waits; [`AcquireRequest::busy`] as long as only the former is certain. A wait that ends before either call
//!    is reported as unreachable, because the client cannot know whether the lock was free. Requests of the same
//!    client that must not overtake the attempt are sent after `queued`.
//! 5. **The anchor of a lease is the moment before the client sent the request** that the server answered with the
//!    lease.
//! 6. **Requests are bounded.** If a server does not answer, that is an error after the backend's own request timeout,
//!    with the exception of `acquire` while it is queued.
//! 7. **A first poll is quick.** The first polls of `acquire`, `cancel` and `release` run on the caller's thread,
//!    inside the engine's runtime; anything that blocks has to run elsewhere. Everything else runs on the engine.
//! 8. **A later group has a higher number**, and the number of a lost group is not used again. Every later grant in that
//!    group is lost too.
//! 9. **Sharing is declared.** A backend that [shares](crate::Capabilities::shared) locks or permits serves waiters of all modes
//!    in the order of their arrival: a head that does not fit stops the queue, and all that fit follow it. A semaphore
//!    is another thing than the lock of its name. A semaphore has the number of permits that its holders and waiters
//!    asked for; a request with a different size fails with [`LockError::other_permits`](crate::LockError::other_permits).
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
//! # A complete backend
//! Its server is a table in memory, which a request reaches with a method instead of a connection. It keeps a queue for
//! each lock: the first in it holds the lock, for ten seconds after its last request.
//!
//! ```
//! use std::collections::{HashMap, VecDeque};
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use lock_core::spi::*;
//! use lock_core::{
//!     Breaking, Broken, Capabilities, CharacterSet, ClientBuilder, Clock, Fairness, HolderId, Inspection, LockClient,
//!     LockError, LockStatus, LossReason, Moment, NameRules, Participant, PhysicalName, Reach,
//! };
//!
//! const LEASE: Duration = Duration::from_secs(10);
//!
//! #[derive(Debug, Default)]
//! struct Server(Mutex<HashMap<PhysicalName, Row>>);
//!
//! #[derive(Debug)]
//! struct Row {
//!     queue: VecDeque<Participant>,
//!     until: Moment,
//! }
//!
//! impl Row {
//!     fn is_held_by(&self, id: &HolderId) -> bool {
//!         self.queue.front().is_some_and(|holder| holder.id == *id)
//!     }
//!
//!     /// Extends the lease of `id`, and returns whether there is one.
//!     fn renew(&mut self, id: &HolderId, now: Moment) -> bool {
//!         let is_held = self.is_held_by(id);
//!         if is_held {
//!             self.until = now.plus(LEASE);
//!         }
//!         is_held
//!     }
//!
//!     /// Removes `id` from the queue, and returns whether it held the lock. Then the lease of the next one begins.
//!     fn remove(&mut self, id: &HolderId, now: Moment) -> bool {
//!         let was_held = self.renew(id, now);
//!         self.queue.retain(|other| other.id != *id);
//!         was_held
//!     }
//! }
//!
//! /// A grant, as the server knows it.
//! #[derive(Debug)]
//! struct Lease {
//!     name: PhysicalName,
//!     id: HolderId,
//! }
//!
//! /// The backend of one client.
//! #[derive(Debug)]
//! struct Table {
//!     server: Arc<Server>,
//!     clock: Clock,
//!     capabilities: Capabilities,
//! }
//!
//! impl Table {
//!     fn connect(server: &Arc<Server>, builder: ClientBuilder) -> Result<LockClient, LockError> {
//!         let names = NameRules::new(CharacterSet::PORTABLE, 200);
//!         let capabilities = Capabilities::new("table", Reach::Process, names)
//!             .with_fairness(Fairness::Fifo)
//!             .with_inspection(Inspection::HolderAndQueue)
//!             .with_breaking(Breaking::Supported);
//!         builder.build(|context| {
//!             context.check_lease(LEASE)?;
//!             Ok(Self { server: Arc::clone(server), clock: context.clock().clone(), capabilities })
//!         })
//!     }
//!
//!     /// One request: the server ends a lease that is over, and then carries the request out.
//!     fn request<T>(&self, name: &PhysicalName, action: impl FnOnce(&mut Row, Moment) -> T) -> T {
//!         let now = self.clock.now();
//!         let mut rows = self.server.0.lock();
//!         let row = rows.entry(name.clone()).or_insert(Row { queue: VecDeque::new(), until: now });
//!         if row.until <= now {
//!             row.queue.pop_front();
//!             row.until = now.plus(LEASE);
//!         }
//!         action(row, now)
//!     }
//! }
//!
//! impl Backend for Table {
//!     type Lease = Lease;
//!
//!     fn capabilities(&self) -> &Capabilities {
//!         &self.capabilities
//!     }
//!
//!     async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Lease>>, LockError> {
//!         let (name, tries_once) = (request.physical(), request.wait() == Wait::Try);
//!         let asking = Participant::new(HolderId::new(request.id().to_string())).with_info(request.holder());
//!         let mut pauses = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
//!         loop {
//!             let anchor = self.clock.now(); // before the request
//!             let is_granted = self.request(name, |row, now| {
//!                 // A request that is repeated finds its place.
//!                 let is_known = row.queue.iter().any(|other| other.id == asking.id);
//!                 if !is_known && (row.queue.is_empty() || !tries_once) {
//!                     row.queue.push_back(asking.clone());
//!                 }
//!                 row.renew(&asking.id, now)
//!             });
//!             if is_granted {
//!                 let lease = Lease { name: name.clone(), id: asking.id };
//!                 let term = Term::Leased { anchor, length: LEASE };
//!                 return Ok(Some(Grant::new(lease, GroupId::new(0), term)));
//!             }
//!             if tries_once {
//!                 return Ok(None);
//!             }
//!             request.queued(); // the server has answered that another client holds the lock
//!             self.clock.sleep_until(self.clock.now().plus(pauses.next_pause())).await;
//!         }
//!     }
//!
//!     async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
//!         let id = HolderId::new(request.id().to_string());
//!         self.request(request.physical(), |row, now| row.remove(&id, now));
//!         Ok(())
//!     }
//!
//!     async fn renew(&self, _: GroupId, leases: &[Arc<Lease>]) -> Result<Vec<LeaseState>, LockError> {
//!         let state = |lease: &Arc<Lease>| {
//!             let is_held = self.request(&lease.name, |row, now| row.renew(&lease.id, now));
//!             if is_held { LeaseState::Held } else { LeaseState::Lost(LossReason::Expired) }
//!         };
//!         Ok(leases.iter().map(state).collect())
//!     }
//!
//!     async fn release(&self, lease: &Lease) -> Result<Released, LockError> {
//!         let was_held = self.request(&lease.name, |row, now| row.remove(&lease.id, now));
//!         Ok(if was_held { Released::Clean } else { Released::WasLost(LossReason::Expired) })
//!     }
//!
//!     async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
//!         let mut status = LockStatus::free(request.name().clone());
//!         let mut queue = self.request(request.physical(), |row, _| row.queue.clone());
//!         status.holders.extend(queue.pop_front());
//!         status.waiters.extend(queue);
//!         Ok(status)
//!     }
//!
//!     async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
//!         let was_held = self.request(request.physical(), |row, now| {
//!             row.is_held_by(holder) && row.remove(holder, now) // the holder learns of it at its next renewal
//!         });
//!         Ok(if was_held { Broken::taken_away() } else { Broken::not_held() })
//!     }
//!
//!     async fn ping(&self) -> Result<(), LockError> {
//!         Ok(()) // nothing can stand between the client and the table
//!     }
//!
//!     async fn close(&self) {} // there is no connection
//! }
//!
//! # lock_memory::example(async |_| {
//! let server = Arc::default();
//! let (ours, theirs) = (Table::connect(&server, ClientBuilder::new())?, Table::connect(&server, ClientBuilder::new())?);
//! let guard = ours.mutex("orders/42")?.acquire().await?;
//! assert!(theirs.mutex("orders/42")?.try_acquire().await?.is_none());
//! guard.release().await?;
//! theirs.mutex("orders/42")?.acquire().await?.release().await?;
//! # Ok(()) });
//! ```
//!
//! `docs/backends/writing-one.md` goes through the steps; `examples/outside-backend` is a backend in a crate of its own.
//!
//! # Enums that are matched in full
//! Those that carry a backend's answer to the core or the core's question to a backend are not `#[non_exhaustive]`: `LeaseState`,
//! `Released`, `Downgraded`, `Updated`, `Remembered`, `Term`, `Wait`. A case that is skipped by `_ =>` would be a guess about a lock, so a
//! new one is a breaking change. All that users receive and that may grow is `#[non_exhaustive]`.

mod attempt;
mod backend;
mod backoff;
mod context;
mod erased;
mod grant;
mod hold_options;
mod inspect_request;
mod lease_deadline;
mod memo;
mod random;

pub use attempt::{AcquireRequest, AttemptId, Wait};
pub use backend::Backend;
pub use backoff::Backoff;
pub use context::BackendContext;
pub use grant::{Downgraded, Grant, GroupId, LeaseState, Released, Term, Updated};
pub use inspect_request::InspectRequest;
pub use memo::{Memo, Recall, Remembered};
pub use random::random_bytes;

pub use crate::types::{LockKind, Mode};

pub use crate::runtime::engine::contained;
pub use crate::runtime::{Mutex, with_waker, within};

pub(crate) use attempt::{Report, Reports};
pub(crate) use context::GroupReport;
pub(crate) use erased::{AnyBackend, AnyLease, Erased};
pub(crate) use hold_options::{HoldOptions, LocalHandoff};
pub(crate) use lease_deadline::{TIMER_SLIP, Validity};
