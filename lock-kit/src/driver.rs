//! A backend's row: what the facade, the command and the documentation know of a backend.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use lock_core::{ClientBuilder, LockClient, LockError, Reach};

use crate::option::UrlOption;
use crate::url::LockUrl;

/// What [`Driver::connect`] returns.
pub type Connecting = Pin<Box<dyn Future<Output = Result<LockClient, LockError>> + Send>>;

/// What the facade knows of a backend: its schemes, its options, and how to connect to it.
///
/// The crate of a backend exports one, as `DRIVER`. Help texts, errors and the tables of options in the documentation
/// come from it or are checked against it.
///
/// ```
/// use lock_memory::MemoryServer;
/// use lock_core::Reach;
/// use lock_kit::{Driver, UrlOption};
///
/// pub static DRIVER: Driver = Driver::new(
///     "shelf",
///     &["shelf"],
///     |url, builder| Box::pin(async move { MemoryServer::connect(&url, builder) }),
///     |url| url.options().take_duration("lease"),
/// )
/// .summary("locks on a shelf of this process")
/// .reach(Reach::Process)
/// .examples(&["shelf:top?lease=30s"])
/// .options(&[UrlOption::duration("lease", "how long a lock stays without a renewal from its holder")]);
///
/// assert_eq!(DRIVER.options[0].name, "lease");
/// ```
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
    /// The options of its URLs, without those that [all backends](UrlOption::COMMON) share.
    pub options: &'static [UrlOption],
    /// Connects to what a URL names, with the settings of the builder. A URL with an option that the backend does not
    /// have is refused. Dropping the future ends the attempt to connect.
    pub connect: fn(LockUrl, ClientBuilder) -> Connecting,
    /// Returns the length of the lease that a URL asks for, without connecting; `None` for locks without a lease.
    pub lease_of: fn(&LockUrl) -> Result<Option<Duration>, LockError>,
}

impl Driver {
    /// Creates the row of a backend without options that reaches across a network.
    pub const fn new(
        name: &'static str,
        schemes: &'static [&'static str],
        connect: fn(LockUrl, ClientBuilder) -> Connecting,
        lease_of: fn(&LockUrl) -> Result<Option<Duration>, LockError>,
    ) -> Self {
        Self {
            name,
            schemes,
            summary: "",
            reach: Reach::Network,
            examples: &[],
            options: &[],
            connect,
            lease_of,
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

    /// Sets the options of its URLs, without those that [all backends](UrlOption::COMMON) share.
    #[must_use]
    pub const fn options(mut self, options: &'static [UrlOption]) -> Self {
        self.options = options;
        self
    }
}
