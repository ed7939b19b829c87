//! Clients of the in-memory server.

use crate::api::builder::ClientBuilder;
use crate::api::client::LockClient;
use crate::memory::{MemoryOptions, MemoryServer};
use crate::types::error::LockError;
use crate::types::url::LockUrl;

impl MemoryServer {
    /// Creates a client without leases, with the default settings.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`](crate::ErrorKind::Internal) when the system has no threads left.
    pub fn client(&self) -> Result<LockClient, LockError> {
        self.client_with(MemoryOptions::default(), ClientBuilder::new().clock(self.clock().clone()))
    }

    /// Creates a client with settings. The builder's clock must be the server's clock.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption) when the lease is too short for the abort margin.
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
    /// # Errors
    /// [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption), naming the option.
    pub fn connect(url: &LockUrl, builder: ClientBuilder) -> Result<LockClient, LockError> {
        let mut options = url.options();
        let builder = builder.with_url_options(&mut options)?.server(format!("memory:{}", url.path()));
        let memory = MemoryOptions::from_url_options(&mut options)?;
        options.finish()?;
        Self::named(url.path()).client_with(memory, builder)
    }
}
