//! The options of a client: where the servers are, how they keep the locks, and how to connect.

use std::time::Duration;

use lock_core::{ClientBuilder, LockClient, LockError, LockKind, Password, PhysicalName};
use lock_kit::{
    Authorities, BackendOptions, Driver, LONGEST_LEASE, LockUrl, TlsOptions, UrlOptions, connect_backend,
    invalid, split_port,
};

use crate::backend::{EtcdEntries, capabilities};
use crate::claim::Directory;

/// Where the servers are and how they keep the locks.
///
/// ```no_run
/// use std::time::Duration;
///
/// use lock_core::ClientBuilder;
/// use lock_etcd::EtcdOptions;
///
/// # async fn run() -> Result<(), lock_core::LockError> {
/// let mut options = EtcdOptions::at("etcd1:2379,etcd2:2379,etcd3:2379", "apps/locks");
/// options.lease = Duration::from_secs(15);
/// let locks = options.connect(ClientBuilder::new()).await?;
/// let guard = locks.mutex("orders-42")?.acquire().await?;
/// guard.release().await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// The servers: `host:port`, separated by commas.
    pub hosts: String,
    /// What the keys of all locks begin with, before a slash. No other prefix in use may begin with this one and a slash.
    pub prefix: String,
    /// How long the servers keep the locks of a client from which they hear nothing; 30 s by default, from 2 s to a day. They
    /// count whole seconds, and may choose a longer time; the client relies on what they answer.
    pub lease: Duration,
    /// How long a server may take to answer a request; 3 s by default, and never more than three quarters of the time between
    /// two renewals.
    pub timeout: Option<Duration>,
    /// Whether a server with faults that concern locks is refused; otherwise the client logs a warning.
    pub is_strict: bool,
    /// The user, who needs a password.
    pub user: Option<String>,
    /// The user's password, or where each new connection gets it. It appears in no output.
    pub password: Option<Password>,
    /// How connections are encrypted; `None` for plain text.
    pub tls: Option<TlsOptions>,
}

/// The port of an etcd server, if none is given.
const DEFAULT_PORT: &str = "2379";

/// The prefix if the URL names none.
const DEFAULT_PREFIX: &str = "distlock";

/// What keys of semaphores stand below.
const PERMITS: &str = "permits";

/// The shortest that a server grants.
const SHORTEST_LEASE: Duration = Duration::from_secs(2);

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);

impl Default for EtcdOptions {
    fn default() -> Self {
        Self::at("localhost", DEFAULT_PREFIX)
    }
}

impl EtcdOptions {
    /// Options for these servers (`host:port`, separated by commas) and this prefix.
    pub fn at(hosts: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self {
            hosts: hosts.into(),
            prefix: prefix.into(),
            lease: Duration::from_secs(30),
            timeout: None,
            is_strict: false,
            user: None,
            password: None,
            tls: None,
        }
    }

    /// Connects to one of the servers.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for options that do not fit together; [`ErrorKind::Unreachable`], [`ErrorKind::Denied`] and
    /// [`ErrorKind::Unsupported`] with the server's reply and what to do about it.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt to connect.
    ///
    /// [`ErrorKind::InvalidOption`]: lock_core::ErrorKind::InvalidOption
    /// [`ErrorKind::Unreachable`]: lock_core::ErrorKind::Unreachable
    /// [`ErrorKind::Denied`]: lock_core::ErrorKind::Denied
    /// [`ErrorKind::Unsupported`]: lock_core::ErrorKind::Unsupported
    pub async fn connect(mut self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.password = builder.own_password().cloned().or(self.password);
        self.check()?;
        if self.user.is_some() != self.password.is_some() {
            return Err(invalid("the user has no password, or the password no user")
                .remedy("write user:password@ into the URL, or name a password_file for its user"));
        }
        self.tls.as_ref().map(TlsOptions::read).transpose()?;
        let capabilities = capabilities(&self, builder.renewal_interval(self.lease)?);
        let builder = builder.server(self.server());
        connect_backend(builder, capabilities, move |context| EtcdEntries::connect(context, self.clone()))
            .await
    }

    /// Where the servers are, for errors and the log.
    fn server(&self) -> String {
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        format!("{scheme}://{}/{}", self.hosts, self.prefix)
    }

    /// The servers, each with its port.
    pub(crate) fn hosts(&self) -> Vec<String> {
        let with_port = |host: &str| match split_port(host) {
            (_, None) => format!("{host}:{DEFAULT_PORT}"),
            (_, Some(_)) => host.to_owned(),
        };
        self.hosts.split(',').map(with_port).collect()
    }

    /// The keys of a lock, or of a semaphore.
    pub(crate) fn directory(&self, name: &PhysicalName, is_semaphore: bool) -> Directory {
        Directory::new(if is_semaphore {
            self.special(PERMITS, name.as_str())
        } else {
            format!("{}/{name}", self.prefix)
        })
    }

    /// What this key belongs to, if that is a lock or a semaphore.
    pub(crate) fn owner_of<'a>(&self, key: &'a str) -> Option<(&'a str, LockKind)> {
        let (first, rest) = key.strip_prefix(&self.prefix)?.strip_prefix('/')?.split_once('/')?;
        match first.strip_prefix('~') {
            None => Some((first, LockKind::Lock)),
            Some(PERMITS) => Some((rest.split_once('/')?.0, LockKind::Semaphore)),
            Some(_) => None,
        }
    }

    /// A key for something else than a lock. No lock has such a name: in one that contains a `~`, a longer hash follows.
    pub(crate) fn special(&self, what: &str, name: &str) -> String {
        format!("{}/~{what}/{name}", self.prefix)
    }

    /// A key that no client uses.
    pub(crate) fn sentinel(&self) -> String {
        self.special("nothing", "")
    }

    /// How long a server may take for a request, if holds are renewed once per `interval`.
    pub(crate) fn timeout_within(&self, interval: Duration) -> Duration {
        self.timeout.unwrap_or(DEFAULT_TIMEOUT).min(interval * 3 / 4)
    }
}

impl BackendOptions for EtcdOptions {
    fn of_url(url: &LockUrl) -> Result<Self, LockError> {
        let prefix = match url.path().trim_matches('/') {
            "" => DEFAULT_PREFIX,
            prefix => prefix,
        };
        Ok(Self {
            user: url.user()?,
            password: url.password()?.map(Password::from),
            // The scheme says whether there is TLS.
            tls: (url.scheme() == "etcds").then(TlsOptions::new),
            ..Self::at(url.hosts(), prefix)
        })
    }

    fn visit(&mut self, options: &mut UrlOptions) -> Result<(), LockError> {
        options.duration("lease", &mut self.lease, SHORTEST_LEASE..=LONGEST_LEASE)?;
        options.optional_duration(
            "timeout",
            &mut self.timeout,
            Duration::from_millis(1)..=Duration::MAX,
            "3s, and never more than three quarters of the time between two renewals",
        )?;
        options.choice("strict", &mut self.is_strict, &[("off", false), ("on", true)])?;
        options.password_file("password_file", &mut self.password)?;
        let was_off = self.tls.is_none();
        TlsOptions::visit(&mut self.tls, options, Authorities::OfFile)?;
        if was_off && self.tls.is_some() {
            return Err(invalid("the options \"ca\", \"cert\" and \"key\" are for TLS")
                .remedy("write etcds:// instead of etcd://, or leave them out"));
        }
        if self.hosts.contains('/') || self.hosts.split(',').any(str::is_empty) {
            return Err(invalid("a server has no name").remedy("write etcd://host:2379/locks"));
        }
        if self.prefix.contains('@') {
            return Err(invalid("the prefix has an @, as if it began in a password")
                .remedy("write %2F for a slash in a password, and a prefix without @"));
        }
        let parts = || self.prefix.split('/');
        if parts().any(|part| part.is_empty() || part.contains('~') || part.chars().any(char::is_control)) {
            return Err(invalid("the prefix of the locks is invalid")
                .remedy("write for example etcd://host:2379/apps/locks, without ~ and empty parts"));
        }
        Ok(())
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.lease)
    }

    async fn connect(self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.connect(builder).await
    }
}

/// Connects to the servers that `url` names: `etcd://[user:password@]host[:port][,host[:port]…][/prefix]`, or `etcds://…` for TLS.
/// `docs/backends/etcd.md` has the options.
///
/// # Errors
/// Those of [`lock_kit::connect`].
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect(url: &LockUrl, builder: ClientBuilder) -> Result<LockClient, LockError> {
    lock_kit::connect::<EtcdOptions>(url, builder).await
}

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::of::<EtcdOptions>("etcd", &["etcd", "etcds"])
    .summary("locks across machines, kept by an etcd cluster")
    .examples(&["etcd://etcd1,etcd2,etcd3/locks", "etcds://etcd1,etcd2,etcd3/locks?lease=15s"]);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn read(url: &str) -> Result<EtcdOptions, LockError> {
        let (options, rest) = lock_kit::read::<EtcdOptions>(&LockUrl::parse(url)?)?;
        rest.finish()?;
        Ok(options)
    }

    #[test]
    fn reads_hosts_and_prefix() {
        let options = read("etcd://h1:1,h2,[::1]/apps/locks/?lease=15s&strict=on").unwrap();
        assert_eq!(options.hosts(), ["h1:1", "h2:2379", "[::1]:2379"]);
        assert_eq!((options.prefix.as_str(), options.is_strict), ("apps/locks", true));
        assert_eq!((options.lease, options.tls), (Duration::from_secs(15), None));
        let options = read("etcds://me:secret@h1?ca=/ca.pem").unwrap();
        assert_eq!((options.prefix.as_str(), options.user.as_deref()), ("distlock", Some("me")));
        assert_eq!(options.tls, Some(TlsOptions::new().authority("/ca.pem")));
        assert_eq!(options.server(), "etcds://h1/distlock");
        assert!(!format!("{options:?}").contains("secret"));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for url in [
            "etcd://h1,,h2",
            "etcd://h1/a//b",
            "etcd://h1/a~b",
            "etcd://me:sec/ret@h1/locks",
            "etcd://h1?ca=/ca.pem",
            "etcd://h1?lease=1s",
            "etcd://h1?strict=perhaps",
        ] {
            assert!(read(url).is_err(), "{url}");
        }
    }

    #[test]
    fn no_lock_has_the_keys_of_something_else() {
        let options = EtcdOptions::at("h1", "locks");
        assert_eq!(options.special("undone", "1-2"), "locks/~undone/1-2");
        assert_eq!(options.owner_of("locks/a/1-2"), Some(("a", LockKind::Lock)));
        assert_eq!(options.owner_of("locks/~permits/a/1-2"), Some(("a", LockKind::Semaphore)));
        for other in ["locks/~undone/1-2", "locks/a", "locks2/a/1-2", "locks/~permits/a"] {
            assert_eq!(options.owner_of(other), None, "{other}");
        }
        let directory = Directory::new("locks/a".to_owned());
        assert_eq!((directory.start(), directory.end().as_str()), ("locks/a/", "locks/a0"));
    }
}
