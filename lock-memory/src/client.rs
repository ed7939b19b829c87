//! Clients of the in-memory server.

use std::time::Duration;

use lock_core::{ClientBuilder, ErrorKind, LockClient, LockError, Operation, Reach};
use lock_kit::{BackendOptions, Driver, LockUrl, UrlOptions};

use crate::{MemoryOptions, MemoryServer};

/// What the facade knows of the memory backend.
pub static DRIVER: Driver = Driver::of::<OfUrl>("memory", &["memory"])
    .summary("locks within one process, for tests")
    .reach(Reach::Process)
    .examples(&["memory:", "memory:orders?lease=30s"]);

/// What a `memory:` URL says.
#[derive(Clone, Default)]
struct OfUrl {
    server: String,
    options: MemoryOptions,
}

impl BackendOptions for OfUrl {
    fn of_url(url: &LockUrl) -> Result<Self, LockError> {
        Ok(Self { server: url.path().to_owned(), ..Self::default() })
    }

    fn visit(&mut self, options: &mut UrlOptions) -> Result<(), LockError> {
        self.options.lease = options.take_duration("lease")?.or(self.options.lease);
        Ok(())
    }

    fn lease(&self) -> Option<Duration> {
        self.options.lease
    }

    async fn connect(self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        let builder = builder.server(format!("memory:{}", self.server));
        MemoryServer::named(&self.server).client_with(self.options, builder)
    }
}

impl MemoryServer {
    /// Creates a client without leases, with the default settings.
    ///
    /// ```
    /// # use lock_memory::MemoryServer;
    /// # lock_memory::example(async |_| {
    /// let server = MemoryServer::new();
    /// let (ours, theirs) = (server.client()?, server.client()?);
    /// let _held = ours.mutex("orders/42")?.acquire().await?;
    /// assert!(theirs.mutex("orders/42")?.try_acquire().await?.is_none());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] when the system has no threads left.
    pub fn client(&self) -> Result<LockClient, LockError> {
        self.client_with(MemoryOptions::default(), ClientBuilder::new().clock(self.clock().clone()))
    }

    /// Creates a client with settings. The builder's clock must be the server's clock.
    ///
    /// ```
    /// # use lock_core::ClientBuilder;
    /// # use lock_memory::{MemoryOptions, MemoryServer};
    /// # use std::time::Duration;
    /// # lock_memory::example(async |_| {
    /// let lease = MemoryOptions::default().lease(Duration::from_secs(30));
    /// let leased = MemoryServer::new().client_with(lease, ClientBuilder::new())?;
    /// let guard = leased.mutex("orders/42")?.acquire().await?;
    /// assert!(guard.hold().remaining().is_some());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] when the lease is too short for the abort margin.
    pub fn client_with(
        &self,
        options: MemoryOptions,
        builder: ClientBuilder,
    ) -> Result<LockClient, LockError> {
        builder.build(|context| self.backend(options, context))
    }
}

/// Runs an example of the documentation with a client of a server of its own.
#[doc(hidden)]
pub fn example<F: AsyncFnOnce(LockClient) -> Result<(), LockError>>(body: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ran = match runtime {
        Ok(runtime) => runtime.block_on(async { body(MemoryServer::new().client()?).await }),
        Err(error) => Err(LockError::new(ErrorKind::Internal, Operation::Connect).caused_by(error)),
    };
    assert!(ran.is_ok(), "the example failed: {ran:?}");
}
