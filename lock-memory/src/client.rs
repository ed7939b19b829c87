//! Clients of the in-memory server.

use lock_core::{ClientBuilder, ErrorKind, LockClient, LockError, Operation, Reach};
use lock_kit::{Driver, LockUrl, UrlOption};

use crate::{MemoryOptions, MemoryServer, lease_of};

/// What the facade knows of the memory backend.
pub static DRIVER: Driver = Driver::new(
    "memory",
    &["memory"],
    |url, builder| Box::pin(async move { MemoryServer::connect(&url, builder) }),
    lease_of,
)
.summary("locks within one process, for tests")
.reach(Reach::Process)
.examples(&["memory:", "memory:orders?lease=30s"])
.options(&[UrlOption::duration("lease", "how long a lock stays without a renewal from its holder")]);

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

    /// Connects to the server that a `memory:` URL names: `memory:` or `memory:name`, with `?lease=DURATION` and the
    /// common options.
    ///
    /// ```
    /// # use lock_core::ClientBuilder;
    /// # use lock_kit::LockUrl;
    /// # use lock_memory::MemoryServer;
    /// # lock_memory::example(async |_| {
    /// let url = LockUrl::parse("memory:shared?lease=30s")?;
    /// let locks = MemoryServer::connect(&url, ClientBuilder::new())?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`], naming the option.
    pub fn connect(url: &LockUrl, builder: ClientBuilder) -> Result<LockClient, LockError> {
        let mut options = url.options();
        let builder = options.configure(builder)?.server(format!("memory:{}", url.path()));
        let memory = MemoryOptions::from_url_options(&mut options)?;
        options.finish()?;
        Self::named(url.path()).client_with(memory, builder)
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
