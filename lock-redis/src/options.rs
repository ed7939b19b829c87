//! The options of a client: where the server is, how it keeps the locks, and how to connect.

use std::path::PathBuf;
use std::time::Duration;

use lock_core::{ClientBuilder, ErrorKind, LockClient, LockError, Operation, Password};
use lock_kit::{Endpoint, TlsOptions, connect_backend};
use lock_kit::{LockUrl, UrlOptions};

use crate::backend::{RedisBackend, capabilities};

/// Where the server is and how it keeps the locks.
///
/// ```no_run
/// use std::time::Duration;
///
/// use lock_core::ClientBuilder;
/// use lock_redis::RedisOptions;
///
/// # async fn run() -> Result<(), lock_core::LockError> {
/// let options = RedisOptions::at("cache.internal", 6379).lease(Duration::from_secs(15));
/// let locks = options.connect(ClientBuilder::new()).await?;
/// let guard = locks.mutex("orders/42")?.acquire().await?;
/// guard.release().await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RedisOptions {
    pub(crate) endpoint: Endpoint,
    pub(crate) tls: Option<TlsOptions>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Password>,
    pub(crate) database: u32,
    pub(crate) lease: Duration,
    pub(crate) prefix: String,
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) restart_delay: Duration,
}

/// The port of a Redis server, if none is given.
const DEFAULT_PORT: u16 = 6379;

const DEFAULT_LEASE: Duration = Duration::from_secs(30);

pub(crate) const SHORTEST_LEASE: Duration = Duration::from_secs(1);

pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

const LONGEST_PREFIX: usize = 100;

impl RedisOptions {
    /// A server that listens on TCP.
    pub fn at(host: impl Into<String>, port: u16) -> Self {
        Self::listening_at(Endpoint::Tcp { host: host.into(), port })
    }

    /// A server that listens on a Unix socket.
    pub fn at_socket(path: impl Into<PathBuf>) -> Self {
        Self::listening_at(Endpoint::Socket(path.into()))
    }

    fn listening_at(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            tls: None,
            user: None,
            password: None,
            database: 0,
            lease: DEFAULT_LEASE,
            prefix: "distlock".to_owned(),
            request_timeout: None,
            restart_delay: Duration::ZERO,
        }
    }

    /// Encrypts the connection, and checks the server's certificate and name against the system's certificate authorities. A Unix
    /// socket has no TLS.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls.get_or_insert_default();
        self
    }

    /// Encrypts the connection, and checks the server's certificate against only this authority (a file in PEM format).
    #[must_use]
    pub fn authority(mut self, file: impl Into<PathBuf>) -> Self {
        self.tls = Some(self.tls.unwrap_or_default().authority(file));
        self
    }

    /// Encrypts the connection, and authenticates this client to the server with a certificate and its key (files in PEM format).
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls = Some(self.tls.unwrap_or_default().client_certificate(certificate, key));
        self
    }

    /// The user of the server's access control list.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password, or where each new connection gets it. It appears in no output.
    #[must_use]
    pub fn password(mut self, password: impl Into<Password>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// The number of the database; 0 by default.
    #[must_use]
    pub fn database(mut self, number: u32) -> Self {
        self.database = number;
        self
    }

    /// How long the server keeps a lock whose holder has gone silent; 30 s by default, at least 1 s. The client renews its
    /// holds about four times per lease.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The prefix of all keys and channels; `distlock` by default. Clients that exclude each other must use the same prefix.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long the server may stay silent while it owes a reply before the connection counts as broken; 3 s by default, and
    /// never more than three quarters of the time between two renewals.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = Some(timeout);
        self
    }

    /// Acquires nothing from a server that started more recently than this; zero by default. A server that forgot its locks in
    /// a restart then grants them only after their holders have had the time to notice the loss. If the server does not persist
    /// every write, set it to the longest lease in use.
    #[must_use]
    pub fn restart_delay(mut self, delay: Duration) -> Self {
        self.restart_delay = delay;
        self
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for options that do not fit together; [`ErrorKind::Unreachable`], [`ErrorKind::Denied`] and
    /// [`ErrorKind::Unsupported`] with the server's reply and what to do about it.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt to connect.
    pub async fn connect(mut self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.password = builder.own_password().cloned().or(self.password);
        self.check()?;
        builder.renewal_interval(self.lease)?;
        let (builder, capabilities) = (builder.server(self.server()), capabilities(&self));
        connect_backend(builder, capabilities, move |context| RedisBackend::connect(context, self.clone()))
            .await
    }

    /// Where the server is, for error messages and the log.
    fn server(&self) -> String {
        let Self { endpoint, database, .. } = self;
        match endpoint {
            Endpoint::Socket(_) => format!("unix://{endpoint}?db={database}"),
            Endpoint::Tcp { .. } if self.tls.is_some() => format!("rediss://{endpoint}/{database}"),
            Endpoint::Tcp { .. } => format!("redis://{endpoint}/{database}"),
        }
    }

    fn check(&self) -> Result<(), LockError> {
        self.endpoint.check(self.tls.as_ref())?;
        if self.lease < SHORTEST_LEASE {
            return Err(invalid(format!("a lease of {:?} is shorter than {SHORTEST_LEASE:?}", self.lease))
                .remedy("make the lease longer"));
        }
        if self.lease > LONGEST_LEASE {
            return Err(invalid("a lease of more than a day keeps a dead holder's lock for that long")
                .remedy("make the lease shorter: a living holder renews it"));
        }
        if self.request_timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(invalid("the timeout is zero").remedy("make the timeout longer"));
        }
        let is_plain = |character: char| character.is_ascii_graphic() && !matches!(character, '{' | '}');
        if self.prefix.is_empty() || self.prefix.len() > LONGEST_PREFIX || !self.prefix.chars().all(is_plain)
        {
            return Err(invalid("the prefix is invalid").remedy(format!(
                "use 1 to {LONGEST_PREFIX} printable ASCII characters without spaces and braces"
            )));
        }
        if self.user.is_some() && self.password.is_none() {
            return Err(invalid("the user has no password")
                .remedy("write user:password@ into the URL, or name a password_file"));
        }
        Ok(())
    }

    /// Reads a URL, and adds the URL's general options to `builder`.
    fn of_url(url: &LockUrl, builder: ClientBuilder) -> Result<(Self, ClientBuilder), LockError> {
        let mut url_options = url.options();
        let builder = url_options.configure(builder)?;
        let mut options = Self::listening_at(endpoint_of(url)?);
        options.tls = tls_of(url, &mut url_options)?;
        if let Some(number) = database_of(url, url_options.take("db").as_deref())? {
            options = options.database(number);
        }
        options.user = url.user()?;
        options.password = url.secret(&mut url_options)?;
        if let Some(lease) = url_options.take_duration("lease")? {
            options = options.lease(lease);
        }
        if let Some(prefix) = url_options.take("prefix") {
            options = options.prefix(prefix);
        }
        if let Some(timeout) = url_options.take_duration("timeout")? {
            options = options.request_timeout(timeout);
        }
        if let Some(delay) = url_options.take_duration("restart_delay")? {
            options = options.restart_delay(delay);
        }
        url_options.finish()?;
        Ok((options, builder))
    }
}

/// Connects to the server that `url` names: `redis://[user:password@]host[:port][/database]`, `rediss://…` for TLS,
/// `unix:///path/to/socket?db=…` for a Unix socket.
///
/// Options: `lease`, `prefix`, `timeout`, `restart_delay`, `password_file`; with TLS `ca`, `cert` and `key` (files in PEM
/// format); and the options of every backend.
///
/// # Errors
/// [`ErrorKind::InvalidOption`] for an invalid URL, and the errors of [`RedisOptions::connect`].
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect(url: &LockUrl, builder: ClientBuilder) -> Result<LockClient, LockError> {
    let (options, builder) = RedisOptions::of_url(url, builder)?;
    options.connect(builder).await
}

/// The lease that `url` asks for; 30 s if it asks for none.
///
/// # Errors
/// [`ErrorKind::InvalidOption`] for a duration that cannot be parsed.
pub fn lease_of(url: &LockUrl) -> Result<Option<Duration>, LockError> {
    let asked = url.options().take_duration("lease")?;
    Ok(Some(asked.unwrap_or(DEFAULT_LEASE)))
}

fn endpoint_of(url: &LockUrl) -> Result<Endpoint, LockError> {
    if url.scheme() != "unix" {
        return Endpoint::parse(url.hosts(), DEFAULT_PORT, "redis://host:6379");
    }
    if url.hosts().is_empty() && url.path().starts_with('/') {
        Ok(Endpoint::Socket(PathBuf::from(url.path())))
    } else {
        Err(invalid("the URL names no socket").remedy("write unix:///path/to/redis.sock"))
    }
}

/// The scheme says whether there is TLS.
fn tls_of(url: &LockUrl, options: &mut UrlOptions) -> Result<Option<TlsOptions>, LockError> {
    match (url.scheme(), TlsOptions::take_files(options)?) {
        ("rediss", files) => Ok(Some(files.unwrap_or_default())),
        ("redis", Some(_)) => Err(invalid("the options \"ca\", \"cert\" and \"key\" are for TLS")
            .remedy("write rediss:// instead of redis://, or leave them out")),
        (_, files) => Ok(files),
    }
}

fn database_of(url: &LockUrl, option: Option<&str>) -> Result<Option<u32>, LockError> {
    let path = if url.scheme() == "unix" { "" } else { url.path().trim_start_matches('/') };
    let text = match (path, option) {
        ("", None) => return Ok(None),
        ("", Some(text)) => text,
        (path, None) => path,
        (_, Some(_)) => return Err(invalid("the database is given twice").remedy("leave ?db= out")),
    };
    text.parse().map(Some).map_err(|_| {
        // The text must not appear in the error: after an unencoded slash in a password it is the rest of the password.
        invalid("the database is not a number")
            .remedy("write for example redis://host/0, and %2F for a slash in a password")
    })
}

pub(crate) fn invalid(cause: impl Into<std::borrow::Cow<'static, str>>) -> LockError {
    LockError::new(ErrorKind::InvalidOption, Operation::Configure).because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<RedisOptions, LockError> {
        let (options, _) = RedisOptions::of_url(&LockUrl::parse(url).unwrap(), ClientBuilder::new())?;
        options.check()?;
        Ok(options)
    }

    #[test]
    fn reads_the_address_in_all_its_forms() {
        for (url, expected) in [
            ("redis://cache", "Tcp { host: \"cache\", port: 6379 }"),
            ("redis://cache:7000/3", "Tcp { host: \"cache\", port: 7000 }"),
            ("redis://[::1]:7000", "Tcp { host: \"::1\", port: 7000 }"),
            ("redis://[::1]", "Tcp { host: \"::1\", port: 6379 }"),
            ("unix:///run/redis.sock?db=3", "Socket(\"/run/redis.sock\")"),
        ] {
            assert_eq!(format!("{:?}", read(url).unwrap().endpoint), expected, "{url}");
            assert_eq!(read(url).unwrap().tls, None, "{url}");
        }
        let encrypted = read("rediss://cache?ca=/ca.pem&cert=/c.pem&key=/k.pem").unwrap();
        assert_eq!(encrypted.server(), "rediss://cache:6379/0");
        let files = TlsOptions::new().authority("/ca.pem").client_certificate("/c.pem", "/k.pem");
        assert_eq!(encrypted.tls, Some(files));
        assert_eq!(read("rediss://cache").unwrap().tls, Some(TlsOptions::new()));
        assert_eq!(read("redis://cache/3").unwrap().database, 3);
        assert_eq!(read("unix:///run/redis.sock?db=3").unwrap().database, 3);
    }

    #[test]
    fn refuses_what_makes_no_sense_and_says_what_to_do() {
        for (url, part) in [
            ("redis://", "redis://host:6379"),
            ("redis://a,b", "primary"),
            ("redis://cache:port", "not a number"),
            ("redis://cache/first", "not a number"),
            ("redis://cache/0?db=1", "twice"),
            ("redis://cache?lease=500ms", "longer"),
            ("redis://cache?lease=25h", "shorter"),
            ("redis://cache?prefix=a%20b", "without spaces"),
            ("redis://cache?prefix=%7Bx%7D", "braces"),
            ("redis://cache?ca=/ca.pem", "\"ca\""),
            ("redis://cache?cert=/c.pem&key=/k.pem", "rediss://"),
            ("unix:///run/redis.sock?ca=/ca.pem", "no TLS"),
            ("unix:///run/redis.sock?cert=/c.pem&key=/k.pem", "no TLS"),
            ("rediss://cache?cert=/c.pem", "both"),
            ("redis://somebody@cache", "password"),
            ("redis://:secret@cache?password_file=/x", "leave one"),
            ("redis://cache?password_file=/nonexistent/x", "/nonexistent/x"),
            ("redis://cache?timeout=0s", "timeout"),
            ("unix://host/run/redis.sock", "unix:///"),
        ] {
            let text = read(url).unwrap_err().to_string();
            assert!(text.contains(part), "{url}: {text}");
            assert!(!text.contains("secret"), "{url}: {text}");
        }
    }

    #[test]
    fn a_socket_with_tls_is_refused_whichever_method_asks_for_it() {
        let at_socket = || RedisOptions::at_socket("/run/redis.sock");
        for options in [
            at_socket().tls(),
            at_socket().authority("/ca.pem"),
            at_socket().client_certificate("/c.pem", "/k.pem"),
        ] {
            let error = options.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            assert!(error.to_string().contains("leave the options of TLS out"), "{error}");
        }
        at_socket().check().unwrap();
    }

    #[test]
    fn the_lease_is_read_without_connecting() {
        let of = |url: &str| lease_of(&LockUrl::parse(url).unwrap());
        assert_eq!(of("redis://cache").unwrap(), Some(DEFAULT_LEASE));
        assert_eq!(of("redis://cache?lease=6s").unwrap(), Some(Duration::from_secs(6)));
        assert!(of("redis://cache?lease=soon").unwrap_err().to_string().contains("lease"));
    }

    #[tokio::test]
    async fn shows_no_password() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "hunter2\n").unwrap();
        let of_file = read(&format!("redis://cache?password_file={}", file.display())).unwrap();
        let of_url = read("redis://me:hunter2@cache").unwrap();
        for options in [of_file, of_url] {
            let password = options.password.as_ref().unwrap().read().await.unwrap();
            assert_eq!(password.reveal(), "hunter2");
            assert!(!format!("{options:?}").contains("hunter2"));
        }
    }
}
