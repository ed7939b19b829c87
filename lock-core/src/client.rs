//! What connecting to a backend gives: the way to its locks.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::backend::{AnyBackend, AttemptId, Backend, Erased, Host, InspectRequest};
use crate::capabilities::{Breaking, Capabilities, Inspection};
use crate::clock::Clock;
use crate::deadline;
use crate::engine::{Engine, EngineChoice, contained};
use crate::error::{ErrorKind, LockError, Operation};
use crate::front::Front;
use crate::hold::LossReason;
use crate::janitor::Janitor;
use crate::keeper::{Keeper, within};
use crate::lock::{DistributedLock, ReentrantLock};
use crate::name::LockName;
use crate::status::{Broken, HolderId, HolderInfo, LockStatus};
use crate::sync::Mutex;
use crate::url::UrlOptions;

/// A client of one backend: makes locks, tells who holds them, and closes in good order. Cheap to clone; every clone is
/// the same client.
///
/// Dropping the last clone, lock, guard and hold ends the client without ceremony, once the releases that are under way
/// have been answered. Those that are not answered within a minute after the last clone and lock have gone are given up, with
/// a line in the log, unless something else is held: the end of the client ends its connections. A hold that was left behind by [`lock`](DistributedLock::lock) keeps the client, and is renewed for
/// ever. [`LockClient::close`] is the orderly way.
#[derive(Clone)]
pub struct LockClient(Arc<ClientCore>, Arc<Handle>);

impl LockClient {
    /// The lock called `name`. Locks of one name made by one client are the same lock.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`]; [`ErrorKind::Closed`] after [`LockClient::close`].
    pub fn lock(&self, name: impl AsRef<str>) -> Result<Arc<dyn DistributedLock>, LockError> {
        let front = ClientCore::front(&self.0, LockName::new(name)?)?;
        Ok(Arc::new(ReentrantLock::new(front, Arc::clone(&self.1))))
    }

    /// Who holds the lock and who waits for it, as far as the backend can tell.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where it cannot; [`ErrorKind::Unreachable`].
    ///
    /// # Cancel safety
    /// May be dropped at any time; it changes nothing.
    pub async fn status(&self, name: impl AsRef<str>) -> Result<LockStatus, LockError> {
        let request = self.0.inspect_request(LockName::new(name)?);
        if self.capabilities().inspection == Inspection::None {
            return Err(self.0.unsupported(Operation::Inspect, &request.name));
        }
        let name = request.name.clone();
        let asked = self
            .0
            .on_engine(Operation::Inspect, move |core| async move { core.backend.inspect(&request).await });
        asked.await.map_err(|error| error.on(&name).during(Operation::Inspect))
    }

    /// Takes the lock from `holder`, who reports it as lost: from that holder or from nobody.
    ///
    /// The program that held the lock runs on until it notices. Only the fencing token keeps what it still writes out.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where a lock cannot be taken away; [`ErrorKind::Unreachable`].
    ///
    /// # Cancel safety
    /// Dropped after its first poll it may or may not have taken the lock away.
    pub async fn break_holder(&self, name: impl AsRef<str>, holder: &HolderId) -> Result<Broken, LockError> {
        let request = self.0.inspect_request(LockName::new(name)?);
        if self.capabilities().breaking == Breaking::Unsupported {
            return Err(self.0.unsupported(Operation::Break, &request.name));
        }
        let (name, holder) = (request.name.clone(), holder.clone());
        let broken = self.0.on_engine(Operation::Break, move |core| async move {
            core.backend.break_holder(&request, &holder).await
        });
        broken.await.map_err(|error| error.on(&name).during(Operation::Break))
    }

    /// What the backend can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.0.backend.capabilities()
    }

    /// Waits until every release and every undone wait is certain.
    ///
    /// # Cancel safety
    /// May be dropped at any time; it changes nothing.
    pub async fn idle(&self) {
        self.0.janitor.idle().await;
    }

    /// Closes the client in good order: refuses new acquisitions, ends waits with [`ErrorKind::Closed`], and waits until
    /// everything that is held has been released, for at most `timeout`.
    ///
    /// What is still held then is lost to its holders, who are told ([`LossReason::ClientClosed`]), and released after the
    /// abort margin; that, where there is such a hold, and up to two seconds for the backend to answer, come on top of
    /// `timeout`.
    ///
    /// # Errors
    /// [`ErrorKind::Unconfirmed`] when something was still held, or a release not certain, at the end of `timeout`. What is not
    /// answered when this returns is given up, with a line in the log.
    ///
    /// # Cancel safety
    /// Dropped after its first poll it leaves the client closed to new acquisitions; call it again to finish.
    pub async fn close(&self, timeout: Duration) -> Result<(), LockError> {
        let core = &self.0;
        core.refuse_acquisitions();
        let deadline = core.clock.now().plus(timeout);
        let all_done = async {
            core.keeper.empty().await;
            core.janitor.idle().await;
        };
        let in_time = within(&core.clock, deadline, all_done).await;
        let left_behind = if in_time.is_some() { None } else { Some(core.end_holds().await) };
        let closing = core.on_engine(Operation::Close, |core| async move {
            core.backend.close().await;
            Ok(())
        });
        let _ = within(&core.clock, core.clock.now().plus(CLOSE_BACKEND_WITHIN), closing).await;
        core.janitor.closed();
        left_behind.map_or(Ok(()), Err)
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LockClient").field("backend", &self.0.backend).finish_non_exhaustive()
    }
}

/// What a user has of a client, in clones and locks. With the last of them all that is left is to end.
pub(crate) struct Handle {
    janitor: Arc<Janitor>,
    clock: Clock,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.janitor.unused(self.clock.now());
    }
}

/// How long the backend may take to end its connections, and the releases that `close` itself began to be answered.
const CLOSE_BACKEND_WITHIN: Duration = Duration::from_secs(1);

/// Settings that are the same for every backend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) abort_margin: Duration,
    pub(crate) max_hold: Option<Duration>,
}

pub(crate) struct ClientCore {
    pub(crate) backend: Box<dyn AnyBackend>,
    pub(crate) engine: Engine,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) holder: Arc<HolderInfo>,
    /// Where the server is.
    pub(crate) server: Arc<str>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) janitor: Arc<Janitor>,
    first_attempt: u128,
    attempts: AtomicU64,
    fronts: Mutex<Fronts>,
}

#[derive(Default)]
struct Fronts {
    by_name: HashMap<LockName, Weak<Front>>,
    closed: Option<LockError>,
}

static NEXT_FRONT: AtomicU64 = AtomicU64::new(0);

impl ClientCore {
    /// A random start for the client, so that no other client has the same ids, and a count from there.
    pub(crate) fn next_attempt(&self) -> AttemptId {
        let number = self.attempts.fetch_add(1, Ordering::Relaxed);
        AttemptId::new(self.first_attempt.wrapping_add(u128::from(number)))
    }

    fn front(self: &Arc<Self>, name: LockName) -> Result<Arc<Front>, LockError> {
        let mut fronts = self.fronts.lock();
        if let Some(error) = &fronts.closed {
            return Err(error.clone().on(&name));
        }
        if let Some(front) = fronts.by_name.get(&name).and_then(Weak::upgrade) {
            return Ok(front);
        }
        let front =
            Arc::new(Front::new(NEXT_FRONT.fetch_add(1, Ordering::Relaxed), name.clone(), Arc::clone(self)));
        fronts.by_name.insert(name, Arc::downgrade(&front));
        Ok(front)
    }

    /// Forgets a front that nobody uses any more, unless another has taken its place.
    pub(crate) fn forget_front(&self, name: &LockName) {
        let mut fronts = self.fronts.lock();
        if fronts.by_name.get(name).is_some_and(|front| front.strong_count() == 0) {
            fronts.by_name.remove(name);
        }
    }

    /// Calls the backend on the engine, where its connections live, whatever the caller runs on.
    async fn on_engine<T, F>(
        self: &Arc<Self>,
        operation: Operation,
        call: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, LockError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, LockError>> + Send + 'static,
    {
        let mut calling = AbortOnDrop(self.engine.spawn(contained(operation, call(Arc::clone(self)))));
        let answer = (&mut calling.0).await.unwrap_or_else(|error| {
            Err(LockError::new(ErrorKind::Closed, operation)
                .because("the runtime that the client's work runs on has ended")
                .caused_by(error))
        });
        answer.map_err(|error| error.at(&self.server))
    }

    fn inspect_request(&self, name: LockName) -> InspectRequest {
        InspectRequest { physical: self.backend.capabilities().names.apply(&name), name }
    }

    fn unsupported(&self, operation: Operation, name: &LockName) -> LockError {
        LockError::new(ErrorKind::Unsupported, operation)
            .on(name)
            .at(&self.server)
            .because(format!("the backend {:?} has no way to do it", self.backend.capabilities().backend))
    }

    fn refuse_acquisitions(&self) {
        let closed = LockError::new(ErrorKind::Closed, Operation::Acquire).remedy("make a new client");
        let fronts: Vec<_> = {
            let mut fronts = self.fronts.lock();
            fronts.closed = Some(closed.clone());
            fronts.by_name.values().filter_map(Weak::upgrade).collect()
        };
        for front in fronts {
            front.undo(front.local.close(&closed));
        }
    }

    /// Takes what is still held from its holders, tells them, and releases it.
    async fn end_holds(&self) -> LockError {
        let holds = self.keeper.all_holds();
        let releases = self.janitor.pending();
        for hold in &holds {
            hold.revoke(LossReason::ClientClosed);
        }
        let now = self.clock.now();
        let stopped_by = self.janitor.stopped_by().map_or(now, |moment| moment.max(now));
        let _ = within(&self.clock, stopped_by.plus(CLOSE_BACKEND_WITHIN), self.janitor.idle()).await;
        LockError::new(ErrorKind::Unconfirmed, Operation::Close)
            .at(&self.server)
            .because(format!("{} locks were still held and {releases} releases not answered", holds.len()))
            .remedy("release every lock before close, or give close more time")
    }
}

/// Makes a [`LockClient`] of a backend, with the settings that every backend has.
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    clock: Clock,
    engine: EngineChoice,
    settings: Settings,
    label: Option<String>,
    server: Option<Arc<str>>,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            engine: EngineChoice::Own,
            settings: Settings { abort_margin: Duration::ZERO, max_hold: None },
            label: None,
            server: None,
        }
    }
}

impl ClientBuilder {
    /// A builder with the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the options that every backend has out of a URL's: `engine=own|caller`, `abort_margin=DURATION`,
    /// `max_hold=DURATION`, `label=TEXT`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], naming the option.
    pub fn with_url_options(mut self, options: &mut UrlOptions) -> Result<Self, LockError> {
        if let Some(engine) =
            options.take_choice("engine", &[("own", EngineChoice::Own), ("caller", EngineChoice::Caller)])?
        {
            self.engine = engine;
        }
        if let Some(margin) = options.take_duration("abort_margin")? {
            // Whoever made the builder knows what it needs to stop; a URL can only add to that.
            self.settings.abort_margin = self.settings.abort_margin.max(margin);
        }
        if let Some(longest) = options.take_duration("max_hold")? {
            self.settings.max_hold = Some(longest);
        }
        if let Some(label) = options.take("label") {
            self.label = Some(label);
        }
        Ok(self)
    }

    /// Where the client's work runs; a thread of its own by default.
    #[must_use]
    pub fn engine(mut self, engine: EngineChoice) -> Self {
        self.engine = engine;
        self
    }

    /// Where the time comes from; the machine's clock by default.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// How long a holder needs to stop after it has been told of a loss; nothing by default. Holds are declared lost that
    /// much earlier.
    #[must_use]
    pub fn abort_margin(mut self, margin: Duration) -> Self {
        self.settings.abort_margin = margin;
        self
    }

    /// The greatest length of a hold, after which it is lost although it could be renewed; without a bound by default. Zero
    /// is refused.
    #[must_use]
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.settings.max_hold = Some(longest);
        self
    }

    /// What the client is called for people who ask who holds a lock; at most 256 characters.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Where the server is, for errors and the log: host and port, database, path; as whom one comes there, and anything
    /// secret, left out. Backends set it; else errors name the backend.
    #[must_use]
    pub fn server(mut self, server: impl Into<String>) -> Self {
        self.server = Some(server.into().into());
        self
    }

    /// Makes a client of a backend that needs no connection.
    ///
    /// # Errors
    /// Whatever `make` answers; [`ErrorKind::InvalidOption`] for an engine on the caller's runtime without one.
    pub fn build<B: Backend>(
        self,
        make: impl FnOnce(Host) -> Result<B, LockError>,
    ) -> Result<LockClient, LockError> {
        let (parts, host) = self.prepare()?;
        let backend = {
            let _entered = parts.engine.handle().enter();
            make(host).map_err(|error| parts.about(error))?
        };
        parts.finish(backend)
    }

    /// Makes a client of a backend that connects first, on the client's engine.
    ///
    /// # Errors
    /// Whatever `make` answers; [`ErrorKind::InvalidOption`] for an engine on the caller's runtime without one.
    ///
    /// # Cancel safety
    /// Dropping it ends the attempt to connect.
    pub async fn connect<B, F>(self, make: impl FnOnce(Host) -> F) -> Result<LockClient, LockError>
    where
        B: Backend,
        F: Future<Output = Result<B, LockError>> + Send + 'static,
    {
        let (parts, host) = self.prepare()?;
        let mut connecting = AbortOnDrop(parts.engine.spawn(make(host)));
        let connected = (&mut connecting.0).await.unwrap_or_else(|error| {
            Err(LockError::new(ErrorKind::Internal, Operation::Connect)
                .because(format!("the attempt to connect was ended: {error}"))
                .caused_by(error))
        });
        let backend = connected.map_err(|error| parts.about(error))?;
        parts.finish(backend)
    }

    fn prepare(self) -> Result<(Parts, Host), LockError> {
        deadline::start().map_err(|error| {
            LockError::new(ErrorKind::Internal, Operation::Connect)
                .because(format!("no thread to keep deadlines: {error}"))
                .remedy("check the limits on threads and open files")
                .caused_by(error)
        })?;
        if self.settings.max_hold == Some(Duration::ZERO) {
            return Err(LockError::new(ErrorKind::InvalidOption, Operation::Configure)
                .because("max_hold is zero, so that every hold would be over as soon as it begins")
                .remedy(
                    "give the greatest length of a hold, or leave max_hold out for holds without a bound",
                ));
        }
        if self.label.as_ref().is_some_and(|label| label.chars().count() > LONGEST_LABEL) {
            return Err(LockError::new(ErrorKind::InvalidOption, Operation::Configure)
                .because(format!("the label has more than {LONGEST_LABEL} characters"))
                .remedy("make it shorter: servers show it to people who look at locks"));
        }
        let engine = Engine::start(self.engine)?;
        let mut holder = HolderInfo::of_this_process();
        holder.label = self.label;
        let parts = Parts {
            engine,
            clock: self.clock,
            settings: self.settings,
            holder: Arc::new(holder),
            server: self.server,
            keeper: Arc::default(),
            janitor: Arc::default(),
        };
        let host = parts.host();
        Ok((parts, host))
    }
}

/// It stands beside each lock at the server.
const LONGEST_LABEL: usize = 256;

/// A client without its backend.
struct Parts {
    engine: Engine,
    clock: Clock,
    settings: Settings,
    holder: Arc<HolderInfo>,
    server: Option<Arc<str>>,
    keeper: Arc<Keeper>,
    janitor: Arc<Janitor>,
}

impl Parts {
    fn about(&self, error: LockError) -> LockError {
        match &self.server {
            Some(server) => error.at(server),
            None => error,
        }
    }

    fn host(&self) -> Host {
        Host {
            clock: self.clock.clone(),
            tasks: Arc::clone(self.engine.backend_tasks()),
            holder: Arc::clone(&self.holder),
            keeper: Arc::clone(&self.keeper),
            janitor: Arc::clone(&self.janitor),
            abort_margin: self.settings.abort_margin,
        }
    }

    fn finish<B: Backend>(self, backend: B) -> Result<LockClient, LockError> {
        let server = self.server.unwrap_or_else(|| format!("{}:", backend.capabilities().backend).into());
        let handle = Handle { janitor: Arc::clone(&self.janitor), clock: self.clock.clone() };
        let core = ClientCore {
            server,
            backend: Box::new(Erased(backend)),
            engine: self.engine,
            clock: self.clock,
            settings: self.settings,
            holder: self.holder,
            keeper: self.keeper,
            janitor: self.janitor,
            first_attempt: random_u128()?,
            attempts: AtomicU64::new(0),
            fronts: Mutex::default(),
        };
        Ok(LockClient(Arc::new(core), Arc::new(handle)))
    }
}

fn random_u128() -> Result<u128, LockError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        LockError::new(ErrorKind::Internal, Operation::Connect)
            .because(format!("the system has no random numbers: {error}"))
    })?;
    Ok(u128::from_ne_bytes(bytes))
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
