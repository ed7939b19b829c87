//! The options of a client, and the functions that connect with them.

use std::path::PathBuf;
use std::time::Duration;

use lock_core::{ClientBuilder, ErrorKind, LockClient, LockError, Operation, Password};
use lock_kit::LockUrl;
use lock_kit::{Endpoint, TlsOptions, UsualParameter, connect_backend};

use crate::backend::{MySqlBackend, capabilities};

/// The server, and how the client keeps locks there.
///
/// ```no_run
/// use std::time::Duration;
///
/// use lock_core::ClientBuilder;
/// use lock_mysql::MySqlOptions;
///
/// # async fn run() -> Result<(), lock_core::LockError> {
/// let options = MySqlOptions::at("db.internal", 3306).user("app").lease(Duration::from_secs(15));
/// let locks = options.connect(ClientBuilder::new()).await?;
/// let guard = locks.mutex("orders/42")?.acquire().await?;
/// guard.release().await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MySqlOptions {
    pub(crate) endpoint: Endpoint,
    pub(crate) tls: Option<TlsOptions>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Password>,
    pub(crate) database: Option<String>,
    pub(crate) lease: Duration,
    pub(crate) prefix: String,
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) validation_interval: Option<Duration>,
    pub(crate) fencing: TokenSource,
    pub(crate) locks_per_connection: usize,
    pub(crate) max_connections: usize,
}

/// The source of fencing tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TokenSource {
    /// The server's `UUID_SHORT()`, in the round trip that acquires the lock. On one server, the tokens rise as long as the
    /// server's clock does. Costs nothing.
    #[default]
    Clock,
    /// A table in the URL's database, which the client creates if it is missing. The tokens also rise from one server to the server
    /// that replaces it. Costs a write for each acquisition. With it, a lock's status names its holder.
    Table,
    /// Grants have no fencing token.
    None,
}

const DEFAULT_PORT: u16 = 3306;

const DEFAULT_LEASE: Duration = Duration::from_secs(30);

const SHORTEST_LEASE: Duration = Duration::from_secs(2);

const LONGEST_LEASE: Duration = Duration::from_hours(24);

/// A name has at most 64 characters on every server; the hash of a long one takes 33.
const LONGEST_PREFIX: usize = 30;

const DEFAULT_LOCKS_PER_CONNECTION: usize = 256;

/// With names of the greatest length, the statement that checks this many locks takes a third of the megabyte that every server
/// accepts.
const MOST_LOCKS_PER_CONNECTION: usize = 4096;

const DEFAULT_MAX_CONNECTIONS: usize = 100;

/// What URLs of MySQL have in other programs.
const USUAL: &[UsualParameter] = &[
    UsualParameter::Tls("ssl-mode", &["DISABLED"], &["REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"]),
    UsualParameter::Tls(
        "sslMode",
        &["DISABLED", "disable"],
        &["REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY", "verify-ca", "verify-full"],
    ),
    UsualParameter::Name("ssl-cert", "cert"),
    UsualParameter::Name("ssl-key", "key"),
    UsualParameter::Seconds("connect_timeout"),
    UsualParameter::Instead("ssl-ca", "write extra_ca=FILE"),
    UsualParameter::Instead("useSSL", "write tls=on, or tls=off"),
    UsualParameter::Instead("charset", "leave it out: names of locks do not depend on it"),
    UsualParameter::Instead("connectTimeout", "write connect_timeout, with its unit"),
];

impl MySqlOptions {
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
            database: None,
            lease: DEFAULT_LEASE,
            prefix: "distlock".to_owned(),
            request_timeout: None,
            validation_interval: None,
            fencing: TokenSource::Clock,
            locks_per_connection: DEFAULT_LOCKS_PER_CONNECTION,
            max_connections: DEFAULT_MAX_CONNECTIONS,
        }
    }

    /// Encrypts the connections, and checks the server's certificate and name against the system's certificate authorities. A Unix
    /// socket has no TLS.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls.get_or_insert_default();
        self
    }

    /// Encrypts the connections, and checks the server's certificate against this authority (a file in PEM format) and those of the
    /// system, which the client crate always trusts as well. To trust one authority alone, name its file in the environment
    /// variable `SSL_CERT_FILE`, leave `SSL_CERT_DIR` unset, and use [`tls`](MySqlOptions::tls).
    #[must_use]
    pub fn extra_authority(mut self, file: impl Into<PathBuf>) -> Self {
        self.tls = Some(self.tls.unwrap_or_default().extra_authority(file));
        self
    }

    /// Encrypts the connections, and authenticates this client to the server with a certificate and its key (files in PEM format).
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls = Some(self.tls.unwrap_or_default().client_certificate(certificate, key));
        self
    }

    /// Sets the user, which is required. Any user will do: named locks need no privilege.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the password, or where each new connection gets it. It appears in no output.
    #[must_use]
    pub fn password(mut self, password: impl Into<Password>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Sets the database. Locks do not belong to a database; only a [table](TokenSource::Table) of tokens does.
    #[must_use]
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.database = Some(name.into());
        self
    }

    /// How long the server keeps a lock when it hears nothing from the holder: the `wait_timeout` of the sessions. 30 s by default,
    /// from 2 s to a day. The client checks holds about four times in this time.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// What the names of all locks begin with, before a colon; `distlock` by default. Clients that exclude each other must use the
    /// same prefix. With an empty one, the client passes names to the server unchanged, as other programs do.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long the server may take to answer a statement that does not wait for a lock; 3 s by default, and never more than three
    /// quarters of the time between two checks.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = Some(timeout);
        self
    }

    /// How often the client checks holds; about a quarter of the lease by default, which is also the longest interval.
    #[must_use]
    pub fn validation_interval(mut self, interval: Duration) -> Self {
        self.validation_interval = Some(interval);
        self
    }

    /// Sets the source of fencing tokens.
    #[must_use]
    pub fn fencing(mut self, source: TokenSource) -> Self {
        self.fencing = source;
        self
    }

    /// How many locks may share a connection; 256 by default, at most 4,096.
    #[must_use]
    pub fn locks_per_connection(mut self, count: usize) -> Self {
        self.locks_per_connection = count;
        self
    }

    /// The highest number of connections; 100 by default, at least 2. Each waiter needs one of its own; if there is none, it queues
    /// for one. Now and then the client uses one more connection to end waits and to check locks.
    #[must_use]
    pub fn max_connections(mut self, count: usize) -> Self {
        self.max_connections = count;
        self
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for options that do not fit together; [`ErrorKind::Unreachable`], [`ErrorKind::Denied`] and
    /// [`ErrorKind::Unsupported`] with what the server answered and what to do about it.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt to connect.
    pub async fn connect(mut self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.password = builder.own_password().cloned().or(self.password);
        self.check()?;
        self.check_login()?;
        let longest = builder.renewal_interval(self.lease)?;
        if let Some(interval) = self.validation_interval.filter(|interval| *interval > longest) {
            return Err(invalid(format!(
                "a validation_interval of {interval:?} is longer than a lease of {:?} allows ({longest:?})",
                self.lease
            ))
            .remedy("make the lease longer, or the validation_interval shorter"));
        }
        let (builder, capabilities) = (builder.server(self.server()), capabilities(&self));
        connect_backend(builder, capabilities, move |context| MySqlBackend::connect(context, self.clone()))
            .await
    }

    /// The server's address, for errors and the log. It leaves out what could be the rest of a password that is not encoded.
    fn server(&self) -> String {
        let endpoint = &self.endpoint;
        let database = self.database.as_ref().filter(|name| !name.contains('@'));
        let path = database.map(|name| format!("/{name}")).unwrap_or_default();
        match endpoint {
            Endpoint::Socket(_) => format!("mysql://localhost{path}?socket={endpoint}"),
            Endpoint::Tcp { .. } => format!("mysql://{endpoint}{path}"),
        }
    }

    fn check(&self) -> Result<(), LockError> {
        self.endpoint.check(self.tls.as_ref())?;
        if self.lease < SHORTEST_LEASE {
            return Err(invalid(format!("a lease of {:?} is shorter than {SHORTEST_LEASE:?}", self.lease))
                .remedy("make the lease longer: the server counts it in whole seconds"));
        }
        if self.lease > LONGEST_LEASE {
            return Err(invalid("a lease of more than a day keeps a dead holder's lock for that long")
                .remedy("make the lease shorter: a living holder renews it"));
        }
        if self.request_timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(invalid("the timeout is zero").remedy("make the timeout longer"));
        }
        if self.validation_interval.is_some_and(|interval| interval < Duration::from_millis(10)) {
            return Err(invalid("a validation_interval below 10ms would overload the server")
                .remedy("make the validation_interval longer"));
        }
        // A colon would end the prefix.
        if self.prefix.len() > LONGEST_PREFIX || !self.prefix.chars().all(|c| is_plain(c) && c != ':') {
            return Err(invalid("the prefix is not acceptable").remedy(format!(
                "use at most {LONGEST_PREFIX} of the characters a-z, 0-9, '-', '_', '.', '/', '@' and '#'"
            )));
        }
        if self.locks_per_connection == 0 {
            return Err(invalid("no lock fits on a connection").remedy("raise locks_per_connection"));
        }
        if self.locks_per_connection > MOST_LOCKS_PER_CONNECTION {
            return Err(invalid(
                "all locks of a connection are checked in one statement, which would be too long",
            )
            .remedy(format!("lower locks_per_connection to {MOST_LOCKS_PER_CONNECTION} or less")));
        }
        if self.max_connections < 2 {
            return Err(invalid("each waiter has a connection, and the other requests need one more")
                .remedy("raise max_connections to 2 or more"));
        }
        if self.fencing == TokenSource::Table && self.database.is_none() {
            return Err(invalid("the table of tokens needs a database")
                .remedy("write mysql://user@host/database?fencing=table"));
        }
        Ok(())
    }

    /// Checks that there is a user and that the files can be read. Without a user, the client crate would log in as `root`.
    fn check_login(&self) -> Result<(), LockError> {
        if self.user.is_none() {
            return Err(invalid("the URL names no user").remedy("write mysql://user@host"));
        }
        self.tls.as_ref().map_or(Ok(()), |tls| tls.read().map(drop))
    }

    /// Reads a URL, and adds the URL's general options to `builder`.
    fn of_url(url: &LockUrl, builder: ClientBuilder) -> Result<(Self, ClientBuilder), LockError> {
        let mut given = url.options();
        given.understand(USUAL)?;
        let builder = given.configure(builder)?;
        let mut options = Self::listening_at(endpoint_of(url, given.take("socket"))?);
        options.tls = TlsOptions::take_with_extra_authority(&mut given)?;
        options.user = url.user()?;
        options.password = url.secret(&mut given)?;
        let database = url.path().trim_start_matches('/');
        if database.contains('/') {
            // The error does not quote it: after a slash in a password that is not encoded, it is the rest of the password.
            return Err(invalid("the database contains a slash")
                .remedy("write mysql://user@host/database, and %2F for a slash in a password"));
        }
        options.database = (!database.is_empty()).then(|| database.to_owned());
        if let Some(lease) = given.take_duration("lease")? {
            options.lease = lease;
        }
        if let Some(prefix) = given.take("prefix") {
            options.prefix = prefix;
        }
        options.request_timeout = given.take_duration("timeout")?;
        options.validation_interval = given.take_duration("validation_interval")?;
        let sources =
            [("uuid", TokenSource::Clock), ("table", TokenSource::Table), ("none", TokenSource::None)];
        if let Some(source) = given.take_choice("fencing", &sources)? {
            options.fencing = source;
        }
        if let Some(count) = take_count(&mut given, "locks_per_connection")? {
            options.locks_per_connection = count;
        }
        if let Some(count) = take_count(&mut given, "max_connections")? {
            options.max_connections = count;
        }
        given.finish()?;
        Ok((options, builder))
    }
}

fn take_count(given: &mut lock_kit::UrlOptions, key: &'static str) -> Result<Option<usize>, LockError> {
    let Some(text) = given.take(key) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| invalid(format!("the option {key:?} is not a number")))
}

/// Connects to the server that `url` names: `mysql://[user[:password]@]host[:port][/database]`, `mariadb://…` for the same, with
/// `socket=/path` for a Unix socket.
///
/// Options: `lease`, `prefix`, `timeout`, `validation_interval`, `fencing` (`uuid`, `table`, `none`),
/// `locks_per_connection`, `max_connections`, `password_file`, `socket`; `tls` (`on`, `off`), `extra_ca`, `cert` and `key` (files in PEM format, which turn TLS
/// on); and the options of every backend.
///
/// # Errors
/// [`ErrorKind::InvalidOption`] for an invalid URL; otherwise the errors of [`MySqlOptions::connect`].
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect(url: &LockUrl, builder: ClientBuilder) -> Result<LockClient, LockError> {
    let (options, builder) = MySqlOptions::of_url(url, builder)?;
    options.connect(builder).await
}

/// The lease that `url` asks for: the option `lease`, or 30 s.
///
/// # Errors
/// [`ErrorKind::InvalidOption`] for a `lease` that cannot be read.
pub fn lease_of(url: &LockUrl) -> Result<Option<Duration>, LockError> {
    Ok(Some(url.options().take_duration("lease")?.unwrap_or(DEFAULT_LEASE)))
}

fn endpoint_of(url: &LockUrl, socket: Option<String>) -> Result<Endpoint, LockError> {
    let Some(path) = socket else {
        return Endpoint::parse(url.hosts(), DEFAULT_PORT, "mysql://user@host:3306/database");
    };
    if matches!(url.hosts(), "" | "localhost") && path.starts_with('/') {
        Ok(Endpoint::Socket(path.into()))
    } else {
        Err(invalid("a socket is on this machine and has an absolute path")
            .remedy("write mysql://user@localhost/database?socket=/path/to/mysqld.sock"))
    }
}

/// A character that both servers keep as it is in a name, and that needs no escape in a statement.
pub(crate) fn is_plain(character: char) -> bool {
    matches!(character, 'a'..='z' | '0'..='9' | '-' | '_' | '.' | '/' | ':' | '@' | '#')
}

pub(crate) fn invalid(cause: impl Into<std::borrow::Cow<'static, str>>) -> LockError {
    LockError::new(ErrorKind::InvalidOption, Operation::Configure).because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<MySqlOptions, LockError> {
        let (options, _) = MySqlOptions::of_url(&LockUrl::parse(url).unwrap(), ClientBuilder::new())?;
        options.check()?;
        Ok(options)
    }

    #[test]
    fn reads_the_address_in_all_its_forms() {
        for (url, expected) in [
            ("mysql://db", "Tcp { host: \"db\", port: 3306 }"),
            ("mariadb://db:3307/app", "Tcp { host: \"db\", port: 3307 }"),
            ("mysql://[::1]:3307", "Tcp { host: \"::1\", port: 3307 }"),
            ("mysql://localhost/app?socket=/run/mysqld.sock", "Socket(\"/run/mysqld.sock\")"),
            ("mysql:?socket=/run/mysqld.sock", "Socket(\"/run/mysqld.sock\")"),
        ] {
            assert_eq!(format!("{:?}", read(url).unwrap().endpoint), expected, "{url}");
            assert_eq!(read(url).unwrap().tls, None, "{url}");
        }
        let encrypted = read("mysql://db?extra_ca=/ca.pem&cert=/c.pem&key=/k.pem").unwrap();
        assert_eq!(encrypted.server(), "mysql://db:3306");
        let files = TlsOptions::new().extra_authority("/ca.pem").client_certificate("/c.pem", "/k.pem");
        assert_eq!(encrypted.tls, Some(files));
        assert_eq!(read("mysql://db?tls=on").unwrap().tls, Some(TlsOptions::new()));
        assert_eq!(read("mysql://db/app").unwrap().database.as_deref(), Some("app"));
        assert!(read("mysql://db/app?ssl-mode=required&connect_timeout=10").unwrap().tls.is_some());
        assert!(read("mysql://db/app?sslMode=DISABLED").unwrap().tls.is_none());
        assert_eq!(read("mysql://db/app?fencing=table").unwrap().fencing, TokenSource::Table);
        assert_eq!(read("mysql://db?prefix=").unwrap().prefix, "");
    }

    #[test]
    fn refuses_what_makes_no_sense_and_says_what_to_do() {
        for (url, part) in [
            ("mysql://", "mysql://user@host:3306"),
            ("mysql://a,b", "primary"),
            ("mysql://db:port", "not a number"),
            ("mysql://db/a/b", "slash"),
            ("mysql://db?lease=500ms", "longer"),
            ("mysql://db?lease=25h", "shorter"),
            ("mysql://db?prefix=A", "a-z"),
            ("mysql://db?prefix=a%27b", "a-z"),
            ("mysql://db?prefix=a:b", "a-z"),
            ("mysql://db?ca=/ca.pem", "extra_ca"),
            ("mysql://db?tls=off&extra_ca=/ca.pem", "tls=off"),
            ("mysql://db?socket=/x", "this machine"),
            ("mysql://localhost?socket=/x&tls=on", "no TLS"),
            ("mysql://localhost?socket=/x&extra_ca=/ca.pem", "no TLS"),
            ("mysql://localhost?socket=/x&cert=/c.pem&key=/k.pem", "no TLS"),
            ("mysql://db?cert=/c.pem", "both"),
            ("mysql://me:secret@db?password_file=/x", "leave one"),
            ("mysql://db?password_file=/nonexistent/x", "/nonexistent/x"),
            ("mysql://db?timeout=0s", "timeout"),
            ("mysql://db?validation_interval=1ms", "validation_interval"),
            ("mysql://db?fencing=table", "database"),
            ("mysql://db?ssl-mode=PREFERRED", "tls=on"),
            ("mysql://db?ssl-ca=/ca.pem", "extra_ca"),
            ("mysql://db?fencing=maybe", "uuid"),
            ("mysql://db?max_connections=1", "max_connections"),
            ("mysql://db?max_connections=x", "not a number"),
            ("mysql://db?locks_per_connection=0", "locks_per_connection"),
            ("mysql://db?locks_per_connection=4097", "4096"),
        ] {
            let text = read(url).unwrap_err().to_string();
            assert!(text.contains(part), "{url}: {text}");
            assert!(!text.contains("secret"), "{url}: {text}");
        }
    }

    #[test]
    fn a_socket_with_tls_is_refused_whichever_method_asks_for_it() {
        let at_socket = || MySqlOptions::at_socket("/run/mysqld.sock");
        for options in [
            at_socket().tls(),
            at_socket().extra_authority("/ca.pem"),
            at_socket().client_certificate("/c.pem", "/k.pem"),
        ] {
            let error = options.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            assert!(error.to_string().contains("leave the options of TLS out"), "{error}");
        }
        at_socket().check().unwrap();
    }

    #[tokio::test]
    async fn shows_no_password() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "hunter2\n").unwrap();
        let of_file = read(&format!("mysql://me@db?password_file={}", file.display())).unwrap();
        let of_url = read("mysql://me:hunter2@db").unwrap();
        for options in [of_file, of_url] {
            let password = options.password.as_ref().unwrap().read().await.unwrap();
            assert_eq!(password.reveal(), "hunter2");
            assert!(!format!("{options:?}").contains("hunter2"));
        }
    }
}
