//! The settings of a client, and how a client is built from a backend.

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::api::client::LockClient;
use crate::api::listener::LockListener;
use crate::api::local_handoff;
use crate::api::options::check_max_hold;
use crate::api::publisher::Publisher;
use crate::policy::client_end::ClientEnd;
use crate::policy::context::ClientContext;
use crate::policy::groups::HeldGroups;
use crate::policy::hold::EventSink;
use crate::runtime::deadline_thread;
use crate::runtime::{AbortOnDrop, Clock, Engine, EngineChoice, Metrics};
use crate::spi::{Backend, BackendContext, Erased, HoldOptions, LocalHandoff, Validity, random_bytes};
use crate::types::{ErrorKind, HolderInfo, LockError, Operation, Password, setters};

/// Builds a [`LockClient`] from a backend, with the settings that all backends share.
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    clock: Clock,
    engine: EngineChoice,
    /// What locks without options of their own ask for.
    options: HoldOptions,
    has_metrics_by_lock: bool,
    server: Option<Arc<str>>,
    listeners: Vec<Arc<dyn LockListener>>,
    connect_timeout: Option<Duration>,
    connect_mode: Option<ConnectMode>,
    password: Option<Password>,
}

/// When a client connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ConnectMode {
    /// Before it is there: an error of connecting is one of `connect`.
    #[default]
    Eager,
    /// When it is first used: by an acquisition, a status, a break or a ping, which then waits for the connection and
    /// returns an error of connecting as its own. An invalid option is still an error of `connect`. A backend without a
    /// connection, such as files, knows no difference.
    Lazy,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            engine: EngineChoice::Own,
            options: HoldOptions::of(Arc::new(HolderInfo::of_this_process())),
            has_metrics_by_lock: false,
            server: None,
            listeners: Vec::new(),
            connect_timeout: None,
            connect_mode: None,
            password: None,
        }
    }
}

impl ClientBuilder {
    /// Creates a builder with the default settings.
    ///
    /// ```
    /// # use lock_core::ClientBuilder;
    /// # use lock_memory::{MemoryOptions, MemoryServer};
    /// # lock_memory::example(async |_| {
    /// let locks = MemoryServer::new().client_with(MemoryOptions::default(), ClientBuilder::new())?;
    /// # Ok(()) });
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Sets where the client's work runs; by default on a thread of its own.
        ///
        /// ```
        /// # use lock_core::{ClientBuilder, EngineChoice};
        /// # lock_memory::example(async |_| {
        /// let builder = ClientBuilder::new().engine(EngineChoice::Caller); // the runtime that connects
        /// # Ok(()) });
        /// ```
        engine(engine: EngineChoice) { engine = engine }

        /// Sets the clock; by default the system clock.
        ///
        /// ```
        /// # use lock_core::{ClientBuilder, Clock};
        /// # use std::time::Duration;
        /// # lock_memory::example(async |_| {
        /// let (clock, time) = Clock::manual();
        /// let builder = ClientBuilder::new().clock(clock);
        /// time.advance(Duration::from_secs(30));
        /// # Ok(()) });
        /// ```
        clock(clock: Clock) { clock = clock }

        /// Sets how long a holder needs to stop after it learns of a loss; zero by default. Holds are declared lost that
        /// much earlier. What is left of the lock at the server stays for that long, unless the holder releases it before.
        ///
        /// ```
        /// # use lock_core::ClientBuilder;
        /// # use std::time::Duration;
        /// # lock_memory::example(async |_| {
        /// let builder = ClientBuilder::new().abort_margin(Duration::from_secs(2));
        /// # Ok(()) });
        /// ```
        abort_margin(margin: Duration) { options.abort_margin = margin }

        /// Sets the longest time that a lock may be held. After that the hold is lost, even if it could still be renewed.
        /// There is no limit by default, and zero is refused.
        ///
        /// ```
        /// # use lock_core::ClientBuilder;
        /// # use std::time::Duration;
        /// # lock_memory::example(async |_| {
        /// let builder = ClientBuilder::new().max_hold(Duration::from_secs(600));
        /// # Ok(()) });
        /// ```
        max_hold(longest: Duration) { options.max_hold = Some(longest) }

        /// Sets how long to try to connect; 10 s by default. Until then, an attempt that fails with an error that may pass
        /// by itself (the server starts, elects a leader, or cannot be reached) is followed by another, after a pause that
        /// grows to a second. Any other error (wrong credentials, a certificate that is not trusted) ends it at once. With
        /// zero there is a single attempt, which the backend limits.
        ///
        /// ```
        /// # use lock_core::ClientBuilder;
        /// # use std::time::Duration;
        /// # lock_memory::example(async |_| {
        /// let builder = ClientBuilder::new().connect_timeout(Duration::from_secs(60));
        /// # Ok(()) });
        /// ```
        connect_timeout(timeout: Duration) { connect_timeout = Some(timeout) }

        /// Sets when the client connects; by default before it is there.
        ///
        /// ```
        /// # use lock_core::{ClientBuilder, ConnectMode};
        /// # lock_memory::example(async |_| {
        /// let builder = ClientBuilder::new().connect_mode(ConnectMode::Lazy);
        /// # Ok(()) });
        /// ```
        connect_mode(mode: ConnectMode) { connect_mode = Some(mode) }

        /// Sets the password of the user at the server, in place of the one that a URL or a backend's options have. It may
        /// change while the client lives: each new connection [asks](Password::from_fn) for it again. Backends without
        /// passwords do not.
        ///
        /// ```
        /// # use lock_core::{ClientBuilder, Password, Secret};
        /// # lock_memory::example(async |_| {
        /// # async fn token() -> Result<Secret, std::io::Error> { Ok(Secret::new("short-lived")) }
        /// let builder = ClientBuilder::new().password(Password::from_fn(token));
        /// # Ok(()) });
        /// ```
        password(password: impl Into<Password>) { password = Some(password.into()) }

        /// Adds the label `lock`, the lock's name, to the metrics of waits and holds. Do so only if the names are few: each name
        /// makes series of its own.
        ///
        /// ```
        /// # use lock_core::ClientBuilder;
        /// # lock_memory::example(async |_| {
        /// let builder = ClientBuilder::new().metrics_by_lock();
        /// # Ok(()) });
        /// ```
        #[cfg(feature = "metrics")]
        metrics_by_lock() { has_metrics_by_lock = true }

        /// Sets the address of the server for errors and the log: host and port, database, path, but no user name and
        /// nothing secret. Backends set it; without it, errors name the backend.
        ///
        /// ```
        /// # use lock_core::ClientBuilder;
        /// # lock_memory::example(async |_| {
        /// let builder = ClientBuilder::new().server("lockd.example:7000/billing");
        /// # Ok(()) });
        /// ```
        server(server: impl Into<String>) { server = Some(server.into().into()) }
    }

    /// Returns what [`password`](Self::password) has set, for a backend.
    ///
    /// ```
    /// use lock_core::{ClientBuilder, Secret};
    ///
    /// assert!(ClientBuilder::new().own_password().is_none());
    /// assert!(ClientBuilder::new().password(Secret::new("short-lived")).own_password().is_some());
    /// # Ok::<(), lock_core::LockError>(())
    /// ```
    pub fn own_password(&self) -> Option<&Password> {
        self.password.as_ref()
    }

    /// Returns what [`abort_margin`](Self::abort_margin) has set.
    pub fn own_abort_margin(&self) -> Duration {
        self.options.abort_margin
    }

    /// Returns what [`connect_timeout`](Self::connect_timeout) has set.
    pub fn own_connect_timeout(&self) -> Option<Duration> {
        self.connect_timeout
    }

    /// Returns what [`connect_mode`](Self::connect_mode) has set.
    pub fn own_connect_mode(&self) -> Option<ConnectMode> {
        self.connect_mode
    }

    /// Sets the name of this client that is shown to people who inspect a lock; at most 256 characters.
    ///
    /// ```
    /// # use lock_core::ClientBuilder;
    /// # lock_memory::example(async |_| {
    /// let builder = ClientBuilder::new().label("billing-7");
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.options.holder).label = Some(label.into());
        self
    }

    /// Adds a listener for the events of all locks of the client, for as long as the client exists. It can be called
    /// several times; [`LockClient::add_listener`] adds a listener that can be removed.
    ///
    /// ```
    /// # use lock_core::{ClientBuilder, Hold, LossReason};
    /// # use std::sync::Arc;
    /// # lock_memory::example(async |_| {
    /// let builder = ClientBuilder::new().listener(Arc::new(|hold: &Hold, reason: &LossReason| {
    ///     eprintln!("{} is lost: {reason}", hold.name());
    /// }));
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn listener(mut self, listener: Arc<dyn LockListener>) -> Self {
        self.listeners.push(listener);
        self
    }

    /// Lets the lock pass between tasks of this client without the server: `sections` holds in a row at most, the first
    /// of which the server grants, and the last begins at most `time` after that grant. One or no section is the default:
    /// each hold comes from the server.
    ///
    /// Passing a lock on then costs no round trip, which pays where many tasks of one program want the same lock. The price is
    /// the order among clients: another client waits for up to `sections` holds or `time`, whichever ends first, and for
    /// the hold that has begun by then, however long that is. [`Fairness`](crate::Fairness) says so.
    ///
    /// Each section is a [`Hold`](crate::Hold) of its own, with a higher token, an age and a `max_hold` of its own. `unlock`
    /// of one that is passed on asks no server: that the server had taken the lock away reaches the task that holds it
    /// when the client learns of it. `break_holder` ends whichever section of the client there is by then. Locks that several share are not
    /// passed on, nor is a lock past an earlier request to share it, or with less than two renewal intervals left of its lease,
    /// or once its [descriptor](crate::Hold::descriptor) was asked for.
    ///
    /// ```
    /// # use lock_core::{ClientBuilder, Fairness};
    /// # use lock_memory::{MemoryOptions, MemoryServer};
    /// # use std::time::Duration;
    /// # lock_memory::example(async |_| {
    /// let builder = ClientBuilder::new().local_handoff(100, Duration::from_millis(10));
    /// let locks = MemoryServer::new().client_with(MemoryOptions::default(), builder)?;
    /// assert_eq!(locks.capabilities().fairness, Fairness::InBatches);
    /// # Ok(()) });
    /// ```
    ///
    /// Building the client fails with [`ErrorKind::Unsupported`] when the backend
    /// [cannot reserve](crate::Capabilities::reserving) so many fencing tokens in one request.
    #[must_use]
    pub fn local_handoff(mut self, sections: u32, time: Duration) -> Self {
        let several = NonZeroU32::new(sections).filter(|sections| sections.get() > 1);
        self.options.local_handoff = several.map(|sections| LocalHandoff { sections, time });
        self
    }

    /// Builds a client from a backend that needs no connection.
    ///
    /// # Errors
    /// Any error of `make`; [`ErrorKind::InvalidOption`] when the engine is the caller's runtime and there is none.
    pub fn build<B: Backend>(
        self,
        make: impl FnOnce(BackendContext) -> Result<B, LockError>,
    ) -> Result<LockClient, LockError> {
        let client = self.prepare()?;
        let backend = {
            let _entered = client.engine.handle.enter();
            make(client.context())
        };
        client.finish(backend)
    }

    /// Returns how often the core will renew leases of `length`. Like [`BackendContext::renewal_interval`], for options
    /// that can be refused before the client connects.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use lock_core::ClientBuilder;
    ///
    /// let interval = ClientBuilder::new().renewal_interval(Duration::from_secs(30))?;
    /// assert!(interval < Duration::from_secs(10));
    /// assert!(ClientBuilder::new().renewal_interval(Duration::from_millis(1)).is_err());
    /// # Ok::<(), lock_core::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] when a lease leaves no time to renew it beside the abort margin, with a text that
    /// says which option to change.
    pub fn renewal_interval(&self, length: Duration) -> Result<Duration, LockError> {
        Validity::new(length, self.options.abort_margin).map(|validity| validity.interval())
    }

    /// Starts the engine of a client whose backend has yet to be made. Most backends call [`build`](Self::build), or
    /// `connect_backend` of the crate `lock-kit`, which call this.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for a setting that makes no sense, and when the engine is the caller's runtime and there is
    /// none; [`ErrorKind::Internal`] when the system has no threads left.
    pub fn prepare(self) -> Result<Unconnected, LockError> {
        deadline_thread::start().map_err(|error| {
            LockError::new(ErrorKind::Internal, Operation::Connect)
                .because(format!("no thread to keep deadlines: {error}"))
                .remedy("check the limits on threads and open files")
                .caused_by(error)
        })?;
        check_max_hold(self.options.max_hold)?;
        check_label(&self.options.holder)?;
        let engine = Engine::start(self.engine)?;
        let held = Arc::new(HeldGroups::new(self.clock.clone()));
        Ok(Unconnected { settings: self, engine, held })
    }
}

/// The server stores the label with each lock.
const LONGEST_LABEL: usize = 256;

pub(super) fn check_label(holder: &HolderInfo) -> Result<(), LockError> {
    if holder.label.as_ref().is_none_or(|label| label.chars().count() <= LONGEST_LABEL) {
        return Ok(());
    }
    Err(LockError::new(ErrorKind::InvalidOption, Operation::Configure)
        .because(format!("the label has more than {LONGEST_LABEL} characters"))
        .remedy("make it shorter: servers show it to people who look at locks"))
}

/// A client without its backend: what [`ClientBuilder::prepare`] returns.
pub struct Unconnected {
    settings: ClientBuilder,
    engine: Engine,
    held: Arc<HeldGroups>,
}

impl Unconnected {
    fn about(&self, error: LockError) -> LockError {
        match self.server() {
            Some(server) => error.at(server),
            None => error,
        }
    }

    /// Returns what [`ClientBuilder::server`] has set.
    pub fn server(&self) -> Option<&Arc<str>> {
        self.settings.server.as_ref()
    }

    /// Makes an attempt to connect, on the engine, which begins at once.
    ///
    /// # Cancel safety
    /// Dropping the returned future ends the attempt.
    pub fn attempt<B: Send + 'static>(
        &self,
        attempt: impl Future<Output = Result<B, LockError>> + Send + 'static,
    ) -> impl Future<Output = Result<B, LockError>> + Send {
        AbortOnDrop(self.engine.spawn(attempt)).answer(Operation::Connect)
    }

    /// Returns what the core provides to the backend.
    pub fn context(&self) -> BackendContext {
        let held = Arc::clone(&self.held);
        BackendContext {
            clock: self.settings.clock.clone(),
            tasks: Arc::clone(&self.engine.backend_tasks),
            holder: Arc::clone(&self.settings.options.holder),
            report: Arc::new(move |group, report| held.report(group, report)),
            abort_margin: self.settings.options.abort_margin,
        }
    }

    /// Builds the client from its backend.
    ///
    /// # Errors
    /// That of `backend`, with the server in it; [`ErrorKind::Unsupported`] for an option that the backend does not have.
    pub fn finish<B: Backend>(self, backend: Result<B, LockError>) -> Result<LockClient, LockError> {
        let backend = backend.map_err(|error| self.about(error))?;
        let mut capabilities = backend.capabilities().clone();
        if let Some(handoff) = self.settings.options.local_handoff {
            local_handoff::apply(handoff, &mut capabilities).map_err(|error| self.about(error))?;
        }
        let ClientBuilder { clock, options, server, listeners, has_metrics_by_lock, .. } = self.settings;
        let server = server.unwrap_or_else(|| format!("{}:", backend.capabilities().backend).into());
        let metrics = Metrics::new(capabilities.backend, has_metrics_by_lock);
        let first_attempt = u128::from_ne_bytes(random_bytes(Operation::Connect)?);
        let publisher = Arc::new(Publisher::default());
        let context = ClientContext {
            backend: Box::new(Erased::new(backend, capabilities, metrics.clone())),
            engine: self.engine,
            clock,
            server,
            metrics,
            options: Arc::new(options),
            held: self.held,
            unconfirmed: Arc::default(),
            end: ClientEnd::new(),
            events: Arc::clone(&publisher) as Arc<dyn EventSink>,
            stopped_by: AtomicU64::default(),
            attempts: (first_attempt, AtomicU64::default()),
        };
        let client = LockClient::new(context, publisher);
        for listener in listeners {
            client.add_listener(listener).detach();
        }
        Ok(client)
    }
}
