//! A backend's row: what the facade, the command and the documentation know of a backend.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use lock_core::{ClientBuilder, LockClient, LockError, Reach};

use crate::backend_options::{self, BackendOptions};
use crate::url::{KnownOptions, LockUrl, UrlOptions};

/// What [`Driver::connect`] returns.
pub type Connecting = Pin<Box<dyn Future<Output = Result<LockClient, LockError>> + Send>>;

/// What the facade knows of a backend: its schemes, its options, and how to connect to it.
///
/// The crate of a backend exports one, as `DRIVER`, [made](Driver::of) of its options.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Driver {
    /// The backend's name: that of its cargo feature in `distlock`, and of its page in `docs/backends`.
    pub name: &'static str,
    /// The schemes of its URLs, in lower case.
    pub schemes: &'static [&'static str],
    /// What its locks are, in one line without a full stop.
    pub summary: &'static str,
    /// Which clients its locks can exclude from each other.
    pub reach: Reach,
    /// URLs: the first one shows the usual form, the others show options.
    pub examples: &'static [&'static str],
    /// The options of its URLs, without those that [all backends](UrlOptions::configure) share.
    pub options: fn() -> KnownOptions,
    /// Connects to what a URL names, with the settings of the builder. A URL with an option that the backend does not
    /// have is refused. Dropping the future ends the attempt to connect.
    pub connect: fn(LockUrl, ClientBuilder) -> Connecting,
    /// Returns the length of the lease that a URL asks for, without connecting; `None` for locks without a lease.
    pub lease_of: fn(&LockUrl) -> Result<Option<Duration>, LockError>,
}

impl Driver {
    /// Creates the row of a backend with these options that reaches across a network.
    pub const fn of<O: BackendOptions>(name: &'static str, schemes: &'static [&'static str]) -> Self {
        Self {
            name,
            schemes,
            summary: "",
            reach: Reach::Network,
            examples: &[],
            options: || {
                let mut options = UrlOptions::default();
                // Defaults are within their limits.
                let _ = O::default().visit(&mut options);
                options.known().clone()
            },
            connect: |url, builder| {
                Box::pin(async move { backend_options::connect::<O>(&url, builder).await })
            },
            lease_of: |url| {
                let mut given = url.options();
                // No lease depends on a password, so no file is read.
                given.leave_out_passwords();
                Ok(backend_options::take::<O>(url, &mut given)?.lease())
            },
        }
    }

    /// Sets what the locks are, in one line without a full stop.
    #[must_use]
    pub const fn summary(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    /// Sets which clients the locks can exclude from each other.
    #[must_use]
    pub const fn reach(mut self, reach: Reach) -> Self {
        self.reach = reach;
        self
    }

    /// Sets the example URLs: first the usual form, then with options.
    #[must_use]
    pub const fn examples(mut self, examples: &'static [&'static str]) -> Self {
        self.examples = examples;
        self
    }
}
