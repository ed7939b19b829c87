//! The options of a client, and the functions that connect with them.

use std::path::Path;
use std::time::Duration;

use lock_core::{ClientBuilder, LockClient, LockError};
use lock_kit::{
    BackendOptions, Driver, Endpoint, LockUrl, ServerOptions, UrlOptions, UsualParameter, connect_backend,
    invalid,
};

use crate::dialect::{Client, capabilities, settings};

/// The server, and how the client keeps locks there.
///
/// ```no_run
/// use std::time::Duration;
///
/// use lock_core::ClientBuilder;
/// use lock_postgres::PostgresOptions;
///
/// # async fn run() -> Result<(), lock_core::LockError> {
/// let mut options = PostgresOptions::at("db.internal", 5432);
/// options.server.user = Some("app".to_owned());
/// options.server.lease = Duration::from_secs(15);
/// let locks = options.connect(ClientBuilder::new()).await?;
/// let guard = locks.mutex("orders/42")?.acquire().await?;
/// guard.release().await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// The server.
    /// * A Unix socket is named by the path of the socket: `/run/postgresql/.s.PGSQL.5432`.
    /// * The user is required. Any user will do: advisory locks need no privilege.
    /// * The lease is the `idle_session_timeout` of the sessions, at least 1 s.
    /// * The prefix is empty by default, and ends before a colon. The server only gets the [key](crate::key()) of `PREFIX:NAME`.
    /// * The client crate trusts the system's authorities in any case. To trust one of your own alone, name its file in the
    ///   environment variable `SSL_CERT_FILE`, leave `SSL_CERT_DIR` unset, and use TLS without a file.
    pub server: ServerOptions,
    /// The database, which has the name of the user by default. **Locks belong to a database**: clients that exclude
    /// each other must use the same one.
    pub database: Option<String>,
    /// How often the client checks holds; by default, and at least, about four times per lease.
    pub validation_interval: Option<Duration>,
    /// The source of fencing tokens.
    pub fencing: TokenSource,
    /// What the server gets instead of the name of a lock. [Raw](Keys::Raw) keys have no prefix.
    pub keys: Keys,
    /// The pooler between the client and the server.
    pub pooler: Pooler,
    /// The schema that has the tables and the sequence of the client; `public` by default, whatever the `search_path` of the
    /// user is. Clients that exclude each other must use the same one.
    pub schema: String,
    /// How many locks may share a connection; 320 by default.
    pub locks_per_connection: usize,
    /// How many waits of this client may be in the queues of the server at the same time; 16 by default. Each needs a
    /// connection. The others wait in the client, in order.
    pub max_waiting: usize,
    /// The highest number of connections; 50 by default, at least 2. Now and then the client uses one more to end waits and
    /// to look at them.
    pub max_connections: usize,
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

/// The longest name that the server does not cut off.
const LONGEST_SCHEMA: usize = 63;

const SHORTEST_LEASE: Duration = Duration::from_secs(1);

const LONGEST_PREFIX: usize = 128;

/// Each waiter has a connection, and the other requests need one more.
const FEWEST_CONNECTIONS: usize = 2;

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

impl Default for PostgresOptions {
    fn default() -> Self {
        Self::at("localhost", DEFAULT_PORT)
    }
}

impl PostgresOptions {
    /// A server that listens on TCP.
    pub fn at(host: impl Into<String>, port: u16) -> Self {
        Self::listening_at(Endpoint::Tcp { host: host.into(), port })
    }

    /// A server that listens there.
    pub fn listening_at(endpoint: Endpoint) -> Self {
        Self {
            server: ServerOptions::at(endpoint, ""),
            database: None,
            validation_interval: None,
            fencing: TokenSource::Clock,
            keys: Keys::Hashed,
            pooler: Pooler::None,
            schema: "public".to_owned(),
            locks_per_connection: 320,
            max_waiting: 16,
            max_connections: 50,
        }
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) for options that do not fit together, and what the server
    /// answered, with what to do about it.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt to connect.
    pub async fn connect(mut self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.check()?;
        self.server.prepare(&builder, self.validation_interval)?;
        if self.server.user.is_none() {
            // The client crate would take one from the environment.
            return Err(invalid("the URL names no user").remedy("write postgres://user@host/database"));
        }
        let builder = builder.server(self.server.shown("postgres", self.database.as_deref()));
        let capabilities = capabilities(&self);
        connect_backend(builder, capabilities.clone(), move |context| {
            Client::connect(settings(context, &self), capabilities.clone(), self.validation_interval)
        })
        .await
    }
}

impl BackendOptions for PostgresOptions {
    const USUAL: &'static [UsualParameter] = USUAL;

    fn of_url(url: &LockUrl) -> Result<Self, LockError> {
        let endpoint = Endpoint::of_url(url, DEFAULT_PORT, "postgres://user@host:5432/database")?;
        let mut options = Self::listening_at(endpoint);
        options.server.log_in_as(url)?;
        options.database = url.database()?.map(str::to_owned);
        Ok(options)
    }

    fn visit(&mut self, options: &mut UrlOptions) -> Result<(), LockError> {
        self.server.visit(options, SHORTEST_LEASE)?;
        self.server.visit_as_of_sql(options, &mut self.validation_interval)?;
        let sources = [
            ("clock", TokenSource::Clock),
            ("sequence", TokenSource::Sequence),
            ("table", TokenSource::Table),
            ("none", TokenSource::None),
        ];
        options.choice("fencing", &mut self.fencing, &sources)?;
        options.choice("keys", &mut self.keys, &[("hashed", Keys::Hashed), ("raw", Keys::Raw)])?;
        let poolers = [("none", Pooler::None), ("session", Pooler::Session)];
        options.choice("pooler", &mut self.pooler, &poolers)?;
        options.text("schema", &mut self.schema);
        options.number("locks_per_connection", &mut self.locks_per_connection, 1..=usize::MAX)?;
        options.number("max_waiting", &mut self.max_waiting, 1..=usize::MAX)?;
        options.number("max_connections", &mut self.max_connections, FEWEST_CONNECTIONS..=usize::MAX)?;
        self.check_texts()
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.server.lease)
    }

    async fn connect(self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.connect(builder).await
    }
}

impl PostgresOptions {
    fn check_texts(&self) -> Result<(), LockError> {
        if let Endpoint::Socket(path) = &self.server.endpoint
            && socket_of(path).is_none()
        {
            return Err(invalid("the socket has no port in its name")
                .remedy("name it as the server does: /run/postgresql/.s.PGSQL.5432"));
        }
        // A colon would end the prefix.
        let prefix = &self.server.prefix;
        if prefix.len() > LONGEST_PREFIX || prefix.contains(':') {
            return Err(invalid("the prefix is not acceptable")
                .remedy(format!("use at most {LONGEST_PREFIX} bytes, without a colon")));
        }
        if self.keys == Keys::Raw && !prefix.is_empty() {
            return Err(invalid("a raw key has no prefix").remedy("leave out prefix, or keys=raw"));
        }
        let is_systems = self.schema.starts_with("pg_") || self.schema == "$user";
        if self.schema.is_empty() || self.schema.len() > LONGEST_SCHEMA || is_systems {
            return Err(invalid("the schema is not acceptable")
                .remedy(format!("name a schema of your own, with at most {LONGEST_SCHEMA} bytes")));
        }
        Ok(())
    }
}

/// Connects to the server that `url` names: `postgres://user[:password]@host[:port]/database`, `postgresql://…` for the same,
/// with `socket=/path` for a Unix socket. `docs/backends/postgres.md` has the options.
///
/// # Errors
/// Those of [`lock_kit::connect`].
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect(url: &LockUrl, builder: ClientBuilder) -> Result<LockClient, LockError> {
    lock_kit::connect::<PostgresOptions>(url, builder).await
}

/// The folder and the port of a socket, which the client crate asks for.
pub(crate) fn socket_of(path: &Path) -> Option<(&Path, u16)> {
    let port = path.file_name()?.to_str()?.strip_prefix(".s.PGSQL.")?;
    Some((path.parent()?, port.parse().ok()?))
}

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::of::<PostgresOptions>("postgres", &["postgres", "postgresql"])
    .summary("locks across machines, kept by a PostgreSQL server")
    .examples(&["postgres://app@db/app", "postgres://app:password@db/app?fencing=sequence"]);

#[cfg(test)]
mod tests {
    use lock_kit::TlsOptions;

    use super::*;

    fn read(url: &str) -> Result<PostgresOptions, LockError> {
        let (options, mut rest) = lock_kit::read::<PostgresOptions>(&LockUrl::parse(url)?)?;
        rest.configure(ClientBuilder::new())?;
        rest.finish()?;
        options.server.endpoint.check(options.server.tls.as_ref())?;
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
            assert_eq!(format!("{:?}", read(url).unwrap().server.endpoint), expected, "{url}");
            assert_eq!(read(url).unwrap().server.tls, None, "{url}");
        }
        assert_eq!(socket_of(Path::new("/run/.s.PGSQL.77")), Some((Path::new("/run"), 77)));
        let encrypted = read("postgres://db/app?extra_ca=/ca.pem&cert=/c.pem&key=/k.pem").unwrap();
        assert_eq!(encrypted.server.shown("postgres", Some("app")), "postgres://db:5432/app");
        let files = TlsOptions::new().extra_authority("/ca.pem").client_certificate("/c.pem", "/k.pem");
        assert_eq!(encrypted.server.tls, Some(files));
        assert_eq!(read("postgres://db?tls=on").unwrap().server.tls, Some(TlsOptions::new()));
        assert_eq!(read("postgres://db/app").unwrap().database.as_deref(), Some("app"));
        assert_eq!(read("postgres://db/app?fencing=sequence").unwrap().fencing, TokenSource::Sequence);
        let usual = "postgres://db/app?sslmode=require&application_name=nightly&connect_timeout=10";
        assert!(read(usual).unwrap().server.tls.is_some());
        assert!(read("postgres://db/app?sslmode=disable").unwrap().server.tls.is_none());
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
            ("postgres://db?lease=500ms", "at least"),
            ("postgres://db?lease=25h", "at most 1day"),
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
        assert_eq!(options.server.password.as_ref().unwrap().read().await.unwrap().reveal(), "hunter2");
        assert!(!format!("{options:?}").contains("hunter2"));
    }
}
