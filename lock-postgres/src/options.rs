//! The options of a client, and the functions that connect with them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_core::{ClientBuilder, ErrorKind, LockClient, LockError, Operation, Password};
use lock_kit::LockUrl;
use lock_kit::{Endpoint, TlsOptions, UsualParameter, connect_backend};

use crate::backend::{PostgresBackend, capabilities};

/// The server, and how the client keeps locks there.
///
/// ```no_run
/// use std::time::Duration;
///
/// use lock_core::ClientBuilder;
/// use lock_postgres::PostgresOptions;
///
/// # async fn run() -> Result<(), lock_core::LockError> {
/// let options = PostgresOptions::at("db.internal", 5432).user("app").lease(Duration::from_secs(15));
/// let locks = options.connect(ClientBuilder::new()).await?;
/// let guard = locks.mutex("orders/42")?.acquire().await?;
/// guard.release().await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PostgresOptions {
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
    pub(crate) keys: Keys,
    pub(crate) pooler: Pooler,
    pub(crate) schema: String,
    pub(crate) locks_per_connection: usize,
    pub(crate) max_waiting: usize,
    pub(crate) max_connections: usize,
}

/// The source of fencing tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TokenSource {
    /// The server's clock, in microseconds, read after the grant in the same statement. The tokens rise as long as the
    /// server's clock does. Costs nothing.
    #[default]
    Clock,
    /// A sequence in the URL's database, `distlock_tokens`, which the client creates if it is missing. The tokens rise
    /// whatever the clock does, also across a crash of the server, but not across a failover that loses the last writes.
    Sequence,
    /// A table in the URL's database, `distlock_tokens_of_locks`, which the client creates if it is missing. The tokens
    /// rise with the clock, and also while that steps back; across a failover as well, as long as the row or the clock
    /// rises. Costs a write for each acquisition.
    Table,
    /// Grants have no fencing token.
    None,
}

impl TokenSource {
    /// Whether the statement that takes a lock also mints the token.
    pub(crate) fn is_in_grant(self) -> bool {
        matches!(self, Self::Clock | Self::Sequence)
    }
}

/// What the server gets instead of the name of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Keys {
    /// The [key](crate::key()) of the name.
    #[default]
    Hashed,
    /// The number that the name is: `mutex("4711")` is `pg_advisory_lock(4711)`, for programs that have keys of their own. Other
    /// names are errors. Semaphores have keys of their own all the same.
    Raw,
}

/// What is between the client and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pooler {
    /// Nothing that has sessions of its own. The client refuses a pooler.
    #[default]
    None,
    /// A pooler that gives each client a session of the server for as long as the client is connected: session mode.
    Session,
}

const DEFAULT_PORT: u16 = 5432;

const DEFAULT_SCHEMA: &str = "public";

/// The longest name that the server does not cut off.
const LONGEST_SCHEMA: usize = 63;

/// What URLs of PostgreSQL have in other programs.
const USUAL: &[UsualParameter] = &[
    UsualParameter::Tls("sslmode", &["disable"], &["require", "verify-ca", "verify-full"]),
    UsualParameter::Name("application_name", "label"),
    UsualParameter::Name("sslcert", "cert"),
    UsualParameter::Name("sslkey", "key"),
    UsualParameter::Seconds("connect_timeout"),
    UsualParameter::Instead("sslrootcert", "write extra_ca=FILE"),
    UsualParameter::Instead("search_path", "write schema=NAME"),
    UsualParameter::Instead("passfile", "write password_file=FILE, a file with the password alone"),
    UsualParameter::Instead("host", "write postgres://user@HOST/database, or socket=/folder/.s.PGSQL.5432"),
    UsualParameter::Instead("target_session_attrs", "leave it out: a standby is always refused"),
];

const DEFAULT_LEASE: Duration = Duration::from_secs(30);

const SHORTEST_LEASE: Duration = Duration::from_secs(1);

const LONGEST_LEASE: Duration = Duration::from_hours(24);

const LONGEST_PREFIX: usize = 128;

const DEFAULT_LOCKS_PER_CONNECTION: usize = 320;

const DEFAULT_MAX_WAITING: usize = 16;

const DEFAULT_MAX_CONNECTIONS: usize = 50;

impl PostgresOptions {
    /// A server that listens on TCP.
    pub fn at(host: impl Into<String>, port: u16) -> Self {
        Self::listening_at(Endpoint::Tcp { host: host.into(), port })
    }

    /// A server that listens on a Unix socket: the path of the socket (`/run/postgresql/.s.PGSQL.5432`).
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
            prefix: String::new(),
            request_timeout: None,
            validation_interval: None,
            fencing: TokenSource::Clock,
            keys: Keys::Hashed,
            pooler: Pooler::None,
            schema: DEFAULT_SCHEMA.to_owned(),
            locks_per_connection: DEFAULT_LOCKS_PER_CONNECTION,
            max_waiting: DEFAULT_MAX_WAITING,
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
    /// variable `SSL_CERT_FILE`, leave `SSL_CERT_DIR` unset, and use [`tls`](PostgresOptions::tls).
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

    /// Sets the user, which is required. Any user will do: advisory locks need no privilege.
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

    /// Sets the database, which has the name of the user by default. **Locks belong to a database**: clients that exclude
    /// each other must use the same one.
    #[must_use]
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.database = Some(name.into());
        self
    }

    /// How long the server keeps a lock when it hears nothing from the holder: the `idle_session_timeout` of the sessions.
    /// 30 s by default, from 1 s to a day. The client checks holds about four times in this time.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// What the names of all locks begin with, before a colon; nothing by default. Clients that exclude each other must use
    /// the same prefix. The server only gets the [key](crate::key()) of `PREFIX:NAME`.
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

    /// Sets what the server gets instead of the name of a lock. [Raw](Keys::Raw) keys have no prefix.
    #[must_use]
    pub fn keys(mut self, keys: Keys) -> Self {
        self.keys = keys;
        self
    }

    /// Says which pooler is between the client and the server.
    #[must_use]
    pub fn pooler(mut self, pooler: Pooler) -> Self {
        self.pooler = pooler;
        self
    }

    /// Sets the schema that has the tables and the sequence of the client; `public` by default, whatever the `search_path` of the
    /// user is. Clients that exclude each other must use the same one.
    #[must_use]
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// How many locks may share a connection; 320 by default.
    #[must_use]
    pub fn locks_per_connection(mut self, count: usize) -> Self {
        self.locks_per_connection = count;
        self
    }

    /// How many waits of this client may be in the queues of the server at the same time; 16 by default. Each needs a
    /// connection. The others wait in the client, in order.
    #[must_use]
    pub fn max_waiting(mut self, count: usize) -> Self {
        self.max_waiting = count;
        self
    }

    /// The highest number of connections; 50 by default, at least 2. Now and then the client uses one more to end waits and
    /// to look at them.
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
        connect_backend(builder, capabilities, move |context| PostgresBackend::connect(context, self.clone()))
            .await
    }

    /// The server's address, for errors and the log. It leaves out what could be the rest of a password that is not encoded.
    fn server(&self) -> String {
        let endpoint = &self.endpoint;
        let database = self.database.as_ref().filter(|name| !name.contains('@'));
        let path = database.map(|name| format!("/{name}")).unwrap_or_default();
        match endpoint {
            Endpoint::Socket(_) => format!("postgres://localhost{path}?socket={endpoint}"),
            Endpoint::Tcp { .. } => format!("postgres://{endpoint}{path}"),
        }
    }

    fn check(&self) -> Result<(), LockError> {
        self.endpoint.check(self.tls.as_ref())?;
        if let Endpoint::Socket(path) = &self.endpoint
            && socket_of(path).is_none()
        {
            return Err(invalid("the socket has no port in its name")
                .remedy("name it as the server does: /run/postgresql/.s.PGSQL.5432"));
        }
        if self.lease < SHORTEST_LEASE {
            return Err(invalid(format!("a lease of {:?} is shorter than {SHORTEST_LEASE:?}", self.lease))
                .remedy("make the lease longer: the client has to renew it in time"));
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
        if self.prefix.len() > LONGEST_PREFIX || self.prefix.contains(':') {
            return Err(invalid("the prefix is not acceptable")
                .remedy(format!("use at most {LONGEST_PREFIX} bytes, without a colon")));
        }
        if self.keys == Keys::Raw && !self.prefix.is_empty() {
            return Err(invalid("a raw key has no prefix").remedy("leave out prefix, or keys=raw"));
        }
        let is_systems = self.schema.starts_with("pg_") || self.schema == "$user";
        if self.schema.is_empty() || self.schema.len() > LONGEST_SCHEMA || is_systems {
            return Err(invalid("the schema is not acceptable")
                .remedy(format!("name a schema of your own, with at most {LONGEST_SCHEMA} bytes")));
        }
        if self.locks_per_connection == 0 {
            return Err(invalid("no lock fits on a connection").remedy("raise locks_per_connection"));
        }
        if self.max_waiting == 0 {
            return Err(invalid("no wait may be at the server").remedy("raise max_waiting"));
        }
        if self.max_connections < 2 {
            return Err(invalid("each waiter has a connection, and the other requests need one more")
                .remedy("raise max_connections to 2 or more"));
        }
        Ok(())
    }

    /// Checks that there is a user and that the files can be read. Without a user, the client crate would take one from the environment.
    fn check_login(&self) -> Result<(), LockError> {
        if self.user.is_none() {
            return Err(invalid("the URL names no user").remedy("write postgres://user@host/database"));
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
                .remedy("write postgres://user@host/database, and %2F for a slash in a password"));
        }
        options.database = (!database.is_empty()).then(|| database.to_owned());
        if let Some(lease) = given.take_duration("lease")? {
            options.lease = lease;
        }
        if let Some(prefix) = given.take("prefix") {
            options.prefix = prefix;
        }
        if let Some(schema) = given.take("schema") {
            options.schema = schema;
        }
        options.request_timeout = given.take_duration("timeout")?;
        options.validation_interval = given.take_duration("validation_interval")?;
        let sources = [
            ("clock", TokenSource::Clock),
            ("sequence", TokenSource::Sequence),
            ("table", TokenSource::Table),
            ("none", TokenSource::None),
        ];
        if let Some(source) = given.take_choice("fencing", &sources)? {
            options.fencing = source;
        }
        if let Some(keys) = given.take_choice("keys", &[("hashed", Keys::Hashed), ("raw", Keys::Raw)])? {
            options.keys = keys;
        }
        if let Some(pooler) =
            given.take_choice("pooler", &[("none", Pooler::None), ("session", Pooler::Session)])?
        {
            options.pooler = pooler;
        }
        if let Some(count) = take_count(&mut given, "max_waiting")? {
            options.max_waiting = count;
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

/// Connects to the server that `url` names: `postgres://user[:password]@host[:port]/database`, `postgresql://…` for the same,
/// with `socket=/path` for a Unix socket.
///
/// Options: `lease`, `prefix`, `timeout`, `validation_interval`, `fencing` (`clock`, `sequence`, `table`, `none`), `keys`
/// (`hashed`, `raw`), `pooler` (`none`, `session`), `schema`, `locks_per_connection`, `max_waiting`, `max_connections`,
/// `password_file`, `socket`; `tls` (`on`, `off`), `extra_ca`, `cert` and `key` (files in PEM format, which turn TLS on);
/// and the options of every backend.
///
/// # Errors
/// [`ErrorKind::InvalidOption`] for an invalid URL; otherwise the errors of [`PostgresOptions::connect`].
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect(url: &LockUrl, builder: ClientBuilder) -> Result<LockClient, LockError> {
    let (options, builder) = PostgresOptions::of_url(url, builder)?;
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
        return Endpoint::parse(url.hosts(), DEFAULT_PORT, "postgres://user@host:5432/database");
    };
    if matches!(url.hosts(), "" | "localhost") && path.starts_with('/') && socket_of(path.as_ref()).is_some()
    {
        Ok(Endpoint::Socket(path.into()))
    } else {
        Err(invalid("a socket is on this machine and has an absolute path")
            .remedy("write postgres://user@localhost/database?socket=/run/postgresql/.s.PGSQL.5432"))
    }
}

/// The folder and the port of a socket, which the client crate asks for.
pub(crate) fn socket_of(path: &Path) -> Option<(&Path, u16)> {
    let port = path.file_name()?.to_str()?.strip_prefix(".s.PGSQL.")?;
    Some((path.parent()?, port.parse().ok()?))
}

pub(crate) fn invalid(cause: impl Into<std::borrow::Cow<'static, str>>) -> LockError {
    LockError::new(ErrorKind::InvalidOption, Operation::Configure).because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<PostgresOptions, LockError> {
        let (options, _) = PostgresOptions::of_url(&LockUrl::parse(url).unwrap(), ClientBuilder::new())?;
        options.check()?;
        Ok(options)
    }

    #[test]
    fn reads_the_address_in_all_its_forms() {
        for (url, expected) in [
            ("postgres://db", "Tcp { host: \"db\", port: 5432 }"),
            ("postgresql://db:5433/app", "Tcp { host: \"db\", port: 5433 }"),
            ("postgres://[::1]:5433", "Tcp { host: \"::1\", port: 5433 }"),
            ("postgres://localhost/app?socket=/run/.s.PGSQL.5432", "Socket(\"/run/.s.PGSQL.5432\")"),
            ("postgres:?socket=/run/.s.PGSQL.5432", "Socket(\"/run/.s.PGSQL.5432\")"),
        ] {
            assert_eq!(format!("{:?}", read(url).unwrap().endpoint), expected, "{url}");
            assert_eq!(read(url).unwrap().tls, None, "{url}");
        }
        assert_eq!(socket_of(Path::new("/run/.s.PGSQL.77")), Some((Path::new("/run"), 77)));
        let encrypted = read("postgres://db/app?extra_ca=/ca.pem&cert=/c.pem&key=/k.pem").unwrap();
        assert_eq!(encrypted.server(), "postgres://db:5432/app");
        let files = TlsOptions::new().extra_authority("/ca.pem").client_certificate("/c.pem", "/k.pem");
        assert_eq!(encrypted.tls, Some(files));
        assert_eq!(read("postgres://db?tls=on").unwrap().tls, Some(TlsOptions::new()));
        assert_eq!(read("postgres://db/app").unwrap().database.as_deref(), Some("app"));
        assert_eq!(read("postgres://db/app?fencing=sequence").unwrap().fencing, TokenSource::Sequence);
        let usual = "postgres://db/app?sslmode=require&application_name=nightly&connect_timeout=10";
        assert!(read(usual).unwrap().tls.is_some());
        assert!(read("postgres://db/app?sslmode=disable").unwrap().tls.is_none());
        assert_eq!(read("postgres://db/app?keys=raw").unwrap().keys, Keys::Raw);
        assert_eq!(read("postgres://db/app?pooler=session").unwrap().pooler, Pooler::Session);
    }

    #[test]
    fn refuses_what_makes_no_sense_and_says_what_to_do() {
        for (url, part) in [
            ("postgres://", "postgres://user@host:5432"),
            ("postgres://a,b", "primary"),
            ("postgres://db:port", "not a number"),
            ("postgres://db/a/b", "slash"),
            ("postgres://db?lease=500ms", "longer"),
            ("postgres://db?lease=25h", "shorter"),
            ("postgres://db?prefix=a:b", "colon"),
            ("postgres://db?ca=/ca.pem", "extra_ca"),
            ("postgres://db?tls=off&extra_ca=/ca.pem", "tls=off"),
            ("postgres://db?socket=/run/.s.PGSQL.5432", "this machine"),
            ("postgres://localhost?socket=/run", "PGSQL"),
            ("postgres://localhost?socket=/run/.s.PGSQL.5432&tls=on", "no TLS"),
            ("postgres://db?cert=/c.pem", "both"),
            ("postgres://me:secret@db?password_file=/x", "leave one"),
            ("postgres://db?timeout=0s", "timeout"),
            ("postgres://db?validation_interval=1ms", "validation_interval"),
            ("postgres://db?fencing=maybe", "clock"),
            ("postgres://db?sslmode=prefer", "tls=on"),
            ("postgres://db?sslmode=require&tls=off", "leave one of them out"),
            ("postgres://db?sslrootcert=/ca.pem", "extra_ca"),
            ("postgres://db?keys=raw&prefix=a", "prefix"),
            ("postgres://db?keys=maybe", "raw"),
            ("postgres://db?pooler=transaction", "session"),
            ("postgres://db?max_waiting=0", "max_waiting"),
            ("postgres://db?max_connections=1", "max_connections"),
            ("postgres://db?max_connections=x", "not a number"),
            ("postgres://db?locks_per_connection=0", "locks_per_connection"),
            ("postgres://db?schema=pg_temp", "schema"),
        ] {
            let text = read(url).unwrap_err().to_string();
            assert!(text.contains(part), "{url}: {text}");
            assert!(!text.contains("secret"), "{url}: {text}");
        }
    }

    #[tokio::test]
    async fn shows_no_password() {
        let options = read("postgres://me:hunter2@db").unwrap();
        assert_eq!(options.password.as_ref().unwrap().read().await.unwrap().reveal(), "hunter2");
        assert!(!format!("{options:?}").contains("hunter2"));
    }
}
