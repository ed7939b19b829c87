//! The client of a backend, from which users get locks.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::api::events::LockEvents;
use crate::api::in_use::InUse;
use crate::api::joint::Joints;
use crate::api::listener::{LockListener, Subscription};
use crate::api::lock::DistributedLock;
use crate::api::mailbox::Reader;
use crate::api::options::LockOptions;
use crate::api::publisher::{Publisher, Topic};
use crate::api::reentrant::ReentrantLock;
use crate::api::several::{MultiLock, in_order};
use crate::policy::client_end::Stage;
use crate::policy::client_lock::ClientLock;
use crate::policy::context::ClientContext;
use crate::runtime::{AbortOnDrop, Clock, Engine};
use crate::spi::{InspectRequest, LockKind, Mode};
use crate::types::{
    Breaking, Broken, Capabilities, ErrorKind, HolderId, Inspection, LockError, LockName, LockStatus,
    Operation,
};

/// A client of one backend. It makes locks, shows who holds them, and can be closed in an orderly way. It is cheap to
/// clone; all clones are the same client.
///
/// Dropping the last clone, lock, guard and hold ends the client as soon as the server has answered all pending
/// releases. Releases that are not answered within a minute after the last clone and lock were dropped are given up,
/// with a line in the log, unless a lock is still held, because the end of the client closes its connections. A hold
/// that [`lock`](DistributedLock::lock) left behind keeps the client alive and is renewed for ever. Use
/// [`LockClient::close`] for an orderly shutdown.
#[derive(Clone)]
pub struct LockClient {
    pub(super) client: Arc<Client>,
    /// What every name begins with.
    pub(super) prefix: Arc<str>,
}

/// What all clones of a client share, and its locks.
pub(super) struct Client {
    pub(super) context: Arc<ClientContext>,
    /// All locks of one name are one.
    pub(super) locks: InUse<(LockName, LockKind), ClientLock>,
    joints: InUse<Box<[LockName]>, Joints>,
    pub(super) publisher: Arc<Publisher>,
}

impl Drop for Client {
    /// The last clone of the client and the last of its locks are dropped. From now on it only has to finish its work.
    fn drop(&mut self) {
        self.context.end.reach(Stage::Unused(self.context.clock.now()));
    }
}

impl LockClient {
    pub(crate) fn new(context: ClientContext, publisher: Arc<Publisher>) -> Self {
        let client = Arc::new(Client {
            context: Arc::new(context),
            locks: InUse::new(),
            joints: InUse::new(),
            publisher,
        });
        Self { client, prefix: Arc::from("") }
    }

    /// Returns a client that puts `prefix` before every name: of locks, of [`status`](Self::status) and of
    /// [`break_holder`](Self::break_holder). Nothing comes between the prefix and the name. The prefix of a scoped
    /// client's own `scoped` comes after the earlier one.
    ///
    /// It shares everything else with this client: the connections, the holds, and the end. [`close`](Self::close) of
    /// either closes both. Holds, errors, statuses and the log have the full name, so the lock `b` of
    /// `scoped("a/")` is the lock `a/b` of this client.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let billing = locks.scoped("tenant-7/").scoped("billing/");
    /// let guard = billing.mutex("orders/42")?.acquire().await?;
    /// assert_eq!(guard.hold().name().as_str(), "tenant-7/billing/orders/42");
    /// assert!(locks.status("tenant-7/billing/orders/42").await?.is_held());
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// A prefix that leaves a name no space is found out by the call that uses the name, with
    /// [`ErrorKind::InvalidName`].
    #[must_use = "the client itself keeps its names"]
    pub fn scoped(&self, prefix: impl AsRef<str>) -> Self {
        let prefix = format!("{}{}", self.prefix, prefix.as_ref());
        Self { client: Arc::clone(&self.client), prefix: prefix.into() }
    }

    /// Returns the lock called `name` in this mode, for holds with these options.
    pub(super) fn lock_in(
        &self,
        mode: Mode,
        name: impl AsRef<str>,
        options: LockOptions,
    ) -> Result<ReentrantLock, LockError> {
        let name = self.full_name(name)?;
        self.refuse_unsupported(&name, mode)?;
        refuse_reserved(&name).map_err(|error| error.of(mode.kind()))?;
        let Client { context, locks, .. } = &*self.client;
        let make =
            |(name, kind): &(LockName, _)| Ok(ClientLock::new(name.clone(), *kind, Arc::clone(context)));
        let lock = locks.get((name, mode.kind()), make)?;
        // After that: what `close` has not found yet is refused here.
        self.refuse_when_closing().map_err(|error| error.on(lock.name()).of(mode.kind()))?;
        let acquisition = options.acquisition(mode, &context.options, self.capabilities());
        let acquisition = acquisition.map_err(|error| lock.about(error))?;
        Ok(ReentrantLock { client: self.clone(), of_client: lock, acquisition })
    }

    pub(super) fn refuse_unsupported(&self, name: &LockName, mode: Mode) -> Result<(), LockError> {
        let Some(cause) = self.capabilities().refusal(mode) else { return Ok(()) };
        Err(self.unsupported(Operation::Acquire, name).of(mode.kind()).because(cause))
    }

    pub(super) fn server(&self) -> &Arc<str> {
        &self.client.context.server
    }

    pub(super) fn publisher(&self) -> &Arc<Publisher> {
        &self.client.publisher
    }

    /// Fails once [`close`](Self::close) has begun.
    pub(super) fn refuse_when_closing(&self) -> Result<(), LockError> {
        if self.client.context.end.has_begun() { Err(closed()) } else { Ok(()) }
    }

    /// Returns the full name of a lock.
    pub(super) fn full_name(&self, name: impl AsRef<str>) -> Result<LockName, LockError> {
        let name = LockName::new(name)?;
        if self.prefix.is_empty() {
            return Ok(name);
        }
        let full = format!("{}{name}", self.prefix);
        LockName::new(&full).map_err(|error| {
            error.because(format!("with the prefix of its scope it has {} bytes", full.len()))
        })
    }

    /// Returns the lock called `name`, which excludes all other owners. Two locks with the same name from the same
    /// client are the same lock. Nothing is acquired yet: [`acquire`](crate::DistributedLock::acquire) does that.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let orders = locks.mutex("orders/42")?;
    /// let guard = orders.acquire().await?;
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`]; [`ErrorKind::Closed`] after [`LockClient::close`].
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<Arc<dyn DistributedLock>, LockError> {
        self.mutex_with(name, LockOptions::new())
    }

    /// Like [`mutex`](Self::mutex), with options for the holds that are acquired through this lock.
    ///
    /// ```
    /// # use lock_core::LockOptions;
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let nightly = locks.mutex_with("nightly", LockOptions::new().max_hold(Duration::from_secs(1800)))?;
    /// let guard = nightly.acquire().await?;
    /// assert!(locks.mutex("nightly")?.try_acquire().await?.is_none()); // the same lock
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`mutex`](Self::mutex); [`ErrorKind::InvalidOption`], naming the option; [`ErrorKind::Unsupported`] for an
    /// option that the backend does not have.
    pub fn mutex_with(
        &self,
        name: impl AsRef<str>,
        options: LockOptions,
    ) -> Result<Arc<dyn DistributedLock>, LockError> {
        Ok(Arc::new(self.lock_in(Mode::Exclusive, name, options)?))
    }

    /// Adds a listener for the events of all locks of this client. It stays until the subscription is dropped.
    ///
    /// ```
    /// # use lock_core::{Hold, LossReason};
    /// # use std::sync::Arc;
    /// # lock_memory::example(async |locks| {
    /// let listener = Arc::new(|hold: &Hold, reason: &LossReason| {
    ///     eprintln!("{} is lost: {reason}", hold.name());
    /// });
    /// locks.add_listener(listener).detach(); // for ever
    /// # Ok(()) });
    /// ```
    pub fn add_listener(&self, listener: Arc<dyn LockListener>) -> Subscription {
        self.client.publisher.add(Topic::Client, Reader::Listener(listener))
    }

    /// Returns a stream of the events of all locks of this client, from now on: the same events as those of a
    /// [listener](LockListener). It needs no runtime, and ends when the client is closed.
    ///
    /// ```
    /// # use lock_core::LockEvent;
    /// # lock_memory::example(async |locks| {
    /// let mut events = locks.events();
    /// locks.mutex("orders/42")?.acquire().await?.release().await?;
    /// assert!(matches!(events.next().await, Some(LockEvent::Acquired { .. })));
    /// assert!(matches!(events.next().await, Some(LockEvent::Released { hold }) if hold.name().as_str() == "orders/42"));
    /// # Ok(()) });
    /// ```
    pub fn events(&self) -> LockEvents {
        LockEvents::of(&self.client.publisher)
    }

    /// Returns the locks called `names` as one: it is acquired all or nothing, with one deadline, and lost when one of them
    /// is lost. The order of the names does not matter, and a name that is given twice counts once.
    /// [`MultiLock`](crate::MultiLock) says what is held while it waits, and joins locks of several clients.
    ///
    /// ```
    /// # use lock_core::DistributedLock;
    /// # lock_memory::example(async |locks| {
    /// let both = locks.mutex_all(["account/7", "account/9"])?;
    /// let guard = both.acquire().await?;
    /// let (from, to) = (guard.hold().token_of("account/7"), guard.hold().token_of("account/9"));
    /// assert!(from.is_some() && to.is_some()); // each account's writes go with its own token
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for an empty list; [`ErrorKind::InvalidName`]; [`ErrorKind::Closed`] after
    /// [`LockClient::close`].
    pub fn mutex_all<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Arc<dyn DistributedLock>, LockError> {
        let locks = names.into_iter().map(|name| self.mutex(name)).collect::<Result<_, _>>()?;
        let locks = in_order(locks)?;
        let names = locks.iter().map(|lock| lock.name().clone()).collect();
        let joints = self.client.joints.get(names, |names| Joints::of(locks, names, self.publisher()))?;
        Ok(Arc::new(MultiLock(joints)))
    }

    /// Returns who holds the lock and who waits for it, as far as the backend can tell.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// let status = locks.status("orders/42").await?;
    /// assert_eq!(status.holders.len(), 1);
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the backend cannot tell; [`ErrorKind::Unreachable`].
    ///
    /// # Cancel safety
    /// The future may be dropped at any time; it changes nothing.
    pub async fn status(&self, name: impl AsRef<str>) -> Result<LockStatus, LockError> {
        self.status_of(self.full_name(name)?, LockKind::Lock).await
    }

    pub(super) async fn status_of(&self, name: LockName, kind: LockKind) -> Result<LockStatus, LockError> {
        if self.capabilities().inspection == Inspection::None {
            return Err(self.unsupported(Operation::Inspect, &name).of(kind));
        }
        let request = self.inspect_request(&name, kind);
        let asked = self
            .on_engine(Operation::Inspect, |context| async move { context.backend.inspect(&request).await });
        asked.await.map_err(|error| error.on(&name).of(kind))
    }

    /// Takes the lock away from `holder`, which reports it as lost. Does nothing if `holder` does not hold the lock any
    /// more.
    ///
    /// The program that held the lock keeps running until it notices. Only the fencing token stops what it still
    /// writes.
    ///
    /// ```
    /// # use lock_core::LossReason;
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// for holder in locks.status("orders/42").await?.holders {
    ///     locks.break_holder("orders/42", &holder.id).await?;
    /// }
    /// assert_eq!(guard.lost().await, Some(LossReason::Broken));
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the backend cannot take a lock away; [`ErrorKind::Unreachable`].
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the lock may or may not have been taken away.
    pub async fn break_holder(&self, name: impl AsRef<str>, holder: &HolderId) -> Result<Broken, LockError> {
        self.break_holder_of(self.full_name(name)?, LockKind::Lock, holder).await
    }

    pub(super) async fn break_holder_of(
        &self,
        name: LockName,
        kind: LockKind,
        holder: &HolderId,
    ) -> Result<Broken, LockError> {
        if self.capabilities().breaking == Breaking::Unsupported {
            return Err(self.unsupported(Operation::Break, &name).of(kind));
        }
        let (request, holder) = (self.inspect_request(&name, kind), holder.clone());
        let broken = self.on_engine(Operation::Break, |context| async move {
            context.backend.break_holder(&request, &holder).await
        });
        broken.await.map_err(|error| error.on(&name).of(kind))
    }

    /// Asks the server for a sign of life, in one small round trip through a connection of this client. For readiness
    /// probes.
    ///
    /// It takes no longer than the backend lets a server take for an answer. A client with several connections asks
    /// through one of them, so that holds on the others may be suspect all the same.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// locks.ping().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when the server does not answer; [`ErrorKind::Denied`], [`ErrorKind::Server`] and
    /// others when it answers that it will not serve this client; [`ErrorKind::Closed`] after [`LockClient::close`].
    ///
    /// # Cancel safety
    /// The future may be dropped at any time; it changes nothing.
    pub async fn ping(&self) -> Result<(), LockError> {
        self.refuse_when_closing()?;
        self.on_engine(Operation::Ping, |context| async move { context.backend.ping().await }).await
    }

    /// Returns what the backend can do.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// assert_eq!(locks.capabilities().backend, "memory");
    /// # Ok(()) });
    /// ```
    pub fn capabilities(&self) -> &Capabilities {
        self.client.context.backend.capabilities()
    }

    /// Calls the backend on the engine, where its connections live, whatever runtime the caller uses.
    pub(super) async fn on_engine<T, F>(
        &self,
        operation: Operation,
        call: impl FnOnce(Arc<ClientContext>) -> F,
    ) -> Result<T, LockError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, LockError>> + Send + 'static,
    {
        let context = &self.client.context;
        let calling = AbortOnDrop(context.engine.spawn(call(Arc::clone(context))));
        calling.answer(operation).await.map_err(|error| error.at(&context.server).during(operation))
    }
    pub(super) fn clock(&self) -> &Clock {
        &self.client.context.clock
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.client.context.engine
    }

    fn inspect_request(&self, name: &LockName, kind: LockKind) -> InspectRequest {
        InspectRequest {
            physical: self.capabilities().names.apply(name),
            name: name.clone(),
            kind,
            seen: None,
        }
    }

    fn unsupported(&self, operation: Operation, name: &LockName) -> LockError {
        LockError::new(ErrorKind::Unsupported, operation)
            .on(name)
            .at(self.server())
            .because(format!("the backend {:?} has no way to do it", self.capabilities().backend))
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LockClient")
            .field("backend", &self.client.context.backend)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// The error of what a closed client refuses.
pub(super) fn closed() -> LockError {
    LockError::new(ErrorKind::Closed, Operation::Acquire).remedy("make a new client")
}

/// Refuses names that belong to the inside of a semaphore: some servers keep a semaphore below its name.
fn refuse_reserved(name: &LockName) -> Result<(), LockError> {
    let inside = ["/locks", "/leases"].into_iter().find(|inside| name.as_str().ends_with(inside));
    let Some(inside) = inside else { return Ok(()) };
    Err(LockError::new(ErrorKind::InvalidName, Operation::Configure)
        .on(name)
        .because(format!("names that end with {inside:?} are reserved for semaphores"))
        .remedy("choose another last part"))
}
