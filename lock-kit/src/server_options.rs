//! What the options of backends with one server have in common.

use std::time::Duration;

use lock_core::{ClientBuilder, LockError, Password};

use crate::endpoint::Endpoint;
use crate::failure::invalid;
use crate::tls::{Authorities, TlsOptions};
use crate::url::{LockUrl, UrlOptions};

/// The longest lease: a dead holder's lock is taken for as long, and a living holder renews it.
pub const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);

/// Where a server is, who the client is there, and what backends with one server have in common besides.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Where the server listens.
    pub endpoint: Endpoint,
    /// How connections are encrypted; `None` for plain text, which is all that a Unix socket has.
    pub tls: Option<TlsOptions>,
    /// The user.
    pub user: Option<String>,
    /// The password, or where each new connection gets it. It appears in no output.
    pub password: Option<Password>,
    /// How long the server keeps a lock when it hears nothing from the holder; 30 s by default, at most a day. The client renews
    /// its holds about four times in this time.
    pub lease: Duration,
    /// What the server's names of all locks begin with. Clients that exclude each other must use the same prefix.
    pub prefix: String,
    /// How long the server may take to answer a request that does not wait for a lock; 3 s by default, and never more than three
    /// quarters of the time between two renewals.
    pub timeout: Option<Duration>,
}

impl ServerOptions {
    /// A server that listens there.
    pub fn at(endpoint: Endpoint, prefix: &str) -> Self {
        Self {
            endpoint,
            tls: None,
            user: None,
            password: None,
            lease: Duration::from_secs(30),
            prefix: prefix.to_owned(),
            timeout: None,
        }
    }

    /// Takes user and password of a URL.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) when an escape is not UTF-8.
    pub fn log_in_as(&mut self, url: &LockUrl) -> Result<(), LockError> {
        self.user = url.user()?;
        self.password = url.password()?.map(Password::from);
        Ok(())
    }

    /// Visits the options that these backends share, without those of TLS.
    ///
    /// # Errors
    /// Those of [`BackendOptions::visit`](crate::BackendOptions::visit).
    pub fn visit(&mut self, options: &mut UrlOptions, shortest_lease: Duration) -> Result<(), LockError> {
        options.duration("lease", &mut self.lease, shortest_lease..=LONGEST_LEASE)?;
        options.text("prefix", &mut self.prefix);
        options.optional_duration(
            "timeout",
            &mut self.timeout,
            Duration::from_millis(1)..=Duration::MAX,
            "3s, and never more than three quarters of the time between two renewals",
        )?;
        options.password_file("password_file", &mut self.password)
    }

    /// Visits what SQL servers have besides: `socket`, which [`Endpoint::of_url`] reads, how often holds are checked, and TLS, for
    /// which the client crate trusts the system's authorities in any case.
    ///
    /// # Errors
    /// Those of [`BackendOptions::visit`](crate::BackendOptions::visit).
    pub fn visit_as_of_sql(
        &mut self,
        options: &mut UrlOptions,
        validation_interval: &mut Option<Duration>,
    ) -> Result<(), LockError> {
        options.take("socket");
        options.optional_duration(
            "validation_interval",
            validation_interval,
            // More often would overload the server.
            Duration::from_millis(10)..=Duration::MAX,
            "a quarter of the lease, about",
        )?;
        TlsOptions::visit_switched(&mut self.tls, options, Authorities::OfFileAndSystem)
    }

    /// Takes the password of the program, if it gives one, and checks what has nothing to do with the server: that there is TLS
    /// where it is asked for, and that its files can be read; that a holder has time to renew the lease, and its checks of a hold
    /// are not further apart than its renewals.
    ///
    /// # Errors
    /// Those of [`Endpoint::check`], [`TlsOptions::read`] and [`ClientBuilder::renewal_interval`];
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) for a `validation_interval` that is too long.
    pub fn prepare(
        &mut self,
        builder: &ClientBuilder,
        validation_interval: Option<Duration>,
    ) -> Result<(), LockError> {
        self.password = builder.own_password().cloned().or(self.password.take());
        self.endpoint.check(self.tls.as_ref())?;
        self.tls.as_ref().map(TlsOptions::read).transpose()?;
        let longest = builder.renewal_interval(self.lease)?;
        match validation_interval.filter(|interval| *interval > longest) {
            None => Ok(()),
            Some(interval) => Err(invalid(format!(
                "a validation_interval of {interval:?} is longer than a lease of {:?} allows ({longest:?})",
                self.lease
            ))
            .remedy("make the lease longer, or the validation_interval shorter")),
        }
    }

    /// Returns the URL of a server with named databases, for errors and the log. It leaves out what could be the rest of a password that
    /// is not encoded.
    pub fn shown(&self, scheme: &str, database: Option<&str>) -> String {
        let endpoint = &self.endpoint;
        let path =
            database.filter(|name| !name.contains('@')).map(|name| format!("/{name}")).unwrap_or_default();
        match endpoint {
            Endpoint::Socket(_) => format!("{scheme}://localhost{path}?socket={endpoint}"),
            Endpoint::Tcp { .. } => format!("{scheme}://{endpoint}{path}"),
        }
    }

    /// Returns how long the server may take for a request, unless an abort margin asks for more renewals.
    pub fn longest_request(&self) -> Duration {
        self.timeout.unwrap_or(DEFAULT_TIMEOUT).min(self.lease * 3 / 16)
    }

    /// Returns how long the server may take for a request, if holds are renewed once per `interval`.
    pub fn timeout_within(&self, interval: Duration) -> Duration {
        self.longest_request().min(interval * 3 / 4)
    }
}
