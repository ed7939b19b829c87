//! The options of a client, and the functions that connect with them.

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
/// use lock_mysql::MySqlOptions;
///
/// # async fn run() -> Result<(), lock_core::LockError> {
/// let mut options = MySqlOptions::at("db.internal", 3306);
/// options.server.user = Some("app".to_owned());
/// options.server.lease = Duration::from_secs(15);
/// let locks = options.connect(ClientBuilder::new()).await?;
/// let guard = locks.mutex("orders/42")?.acquire().await?;
/// guard.release().await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MySqlOptions {
    /// The server.
    /// * The user is required. Any user will do: named locks need no privilege.
    /// * The lease is the `wait_timeout` of the sessions, at least 2 s: the server counts whole seconds.
    /// * The prefix is `distlock` by default, and ends before a colon. With an empty one, the client passes names to the server
    ///   unchanged, as other programs do.
    /// * The client crate trusts the system's authorities in any case. To trust one of your own alone, name its file in the
    ///   environment variable `SSL_CERT_FILE`, leave `SSL_CERT_DIR` unset, and use TLS without a file.
    pub server: ServerOptions,
    /// The database. Locks do not belong to a database; only a [table](TokenSource::Table) of tokens does.
    pub database: Option<String>,
    /// How often the client checks holds; by default, and at least, about four times per lease.
    pub validation_interval: Option<Duration>,
    /// The source of fencing tokens.
    pub fencing: TokenSource,
    /// How many locks may share a connection; 256 by default, at most 4,096.
    pub locks_per_connection: usize,
    /// The highest number of connections; 100 by default, at least 2. Each waiter needs one of its own; if there is none, it queues
    /// for one. Now and then the client uses one more connection to end waits and to check locks.
    pub max_connections: usize,
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

const SHORTEST_LEASE: Duration = Duration::from_secs(2);

/// A name has at most 64 characters on every server; the hash of a long one takes 33.
const LONGEST_PREFIX: usize = 30;

/// With names of the greatest length, the statement that checks this many locks takes a third of the megabyte that every server
/// accepts.
const MOST_LOCKS_PER_CONNECTION: usize = 4096;

/// Each waiter has a connection, and the other requests need one more.
const FEWEST_CONNECTIONS: usize = 2;

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

impl Default for MySqlOptions {
    fn default() -> Self {
        Self::at("localhost", DEFAULT_PORT)
    }
}

impl MySqlOptions {
    /// A server that listens on TCP.
    pub fn at(host: impl Into<String>, port: u16) -> Self {
        Self::listening_at(Endpoint::Tcp { host: host.into(), port })
    }

    /// A server that listens there.
    pub fn listening_at(endpoint: Endpoint) -> Self {
        Self {
            server: ServerOptions::at(endpoint, "distlock"),
            database: None,
            validation_interval: None,
            fencing: TokenSource::Clock,
            locks_per_connection: 256,
            max_connections: 100,
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
            // The client crate would log in as `root`.
            return Err(invalid("the URL names no user").remedy("write mysql://user@host"));
        }
        let builder = builder.server(self.server.shown("mysql", self.database.as_deref()));
        let capabilities = capabilities(&self);
        connect_backend(builder, capabilities.clone(), move |context| {
            Client::connect(settings(context, &self), capabilities.clone(), self.validation_interval)
        })
        .await
    }
}

impl BackendOptions for MySqlOptions {
    const USUAL: &'static [UsualParameter] = USUAL;

    fn of_url(url: &LockUrl) -> Result<Self, LockError> {
        let endpoint = Endpoint::of_url(url, DEFAULT_PORT, "mysql://user@host:3306/database")?;
        let mut options = Self::listening_at(endpoint);
        options.server.log_in_as(url)?;
        options.database = url.database()?.map(str::to_owned);
        Ok(options)
    }

    fn visit(&mut self, options: &mut UrlOptions) -> Result<(), LockError> {
        self.server.visit(options, SHORTEST_LEASE)?;
        self.server.visit_as_of_sql(options, &mut self.validation_interval)?;
        let sources =
            [("uuid", TokenSource::Clock), ("table", TokenSource::Table), ("none", TokenSource::None)];
        options.choice("fencing", &mut self.fencing, &sources)?;
        let locks = 1..=MOST_LOCKS_PER_CONNECTION;
        options.number("locks_per_connection", &mut self.locks_per_connection, locks)?;
        options.number("max_connections", &mut self.max_connections, FEWEST_CONNECTIONS..=usize::MAX)?;
        // A colon would end the prefix.
        let prefix = &self.server.prefix;
        if prefix.len() > LONGEST_PREFIX || !prefix.chars().all(|c| is_plain(c) && c != ':') {
            return Err(invalid("the prefix is not acceptable").remedy(format!(
                "use at most {LONGEST_PREFIX} of the characters a-z, 0-9, '-', '_', '.', '/', '@' and '#'"
            )));
        }
        if self.fencing == TokenSource::Table && self.database.is_none() {
            return Err(invalid("the table of tokens needs a database")
                .remedy("write mysql://user@host/database?fencing=table"));
        }
        Ok(())
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.server.lease)
    }

    async fn connect(self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.connect(builder).await
    }
}

/// Connects to the server that `url` names: `mysql://user[:password]@host[:port][/database]`, `mariadb://…` for the same, with
/// `socket=/path` for a Unix socket. `docs/backends/mysql.md` has the options.
///
/// # Errors
/// Those of [`lock_kit::connect`].
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect(url: &LockUrl, builder: ClientBuilder) -> Result<LockClient, LockError> {
    lock_kit::connect::<MySqlOptions>(url, builder).await
}

/// A character that both servers keep as it is in a name, and that needs no escape in a statement.
pub(crate) fn is_plain(character: char) -> bool {
    matches!(character, 'a'..='z' | '0'..='9' | '-' | '_' | '.' | '/' | ':' | '@' | '#')
}

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::of::<MySqlOptions>("mysql", &["mysql", "mariadb"])
    .summary("locks across machines, kept by a MySQL or MariaDB server")
    .examples(&["mysql://app@db", "mysql://app:password@db/app?fencing=table"]);

#[cfg(test)]
mod tests {
    use lock_kit::TlsOptions;

    use super::*;

    fn read(url: &str) -> Result<MySqlOptions, LockError> {
        let (options, mut rest) = lock_kit::read::<MySqlOptions>(&LockUrl::parse(url)?)?;
        rest.configure(ClientBuilder::new())?;
        rest.finish()?;
        options.server.endpoint.check(options.server.tls.as_ref())?;
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
            assert_eq!(format!("{:?}", read(url).unwrap().server.endpoint), expected, "{url}");
            assert_eq!(read(url).unwrap().server.tls, None, "{url}");
        }
        let encrypted = read("mysql://db?extra_ca=/ca.pem&cert=/c.pem&key=/k.pem").unwrap();
        assert_eq!(encrypted.server.shown("mysql", None), "mysql://db:3306");
        let files = TlsOptions::new().extra_authority("/ca.pem").client_certificate("/c.pem", "/k.pem");
        assert_eq!(encrypted.server.tls, Some(files));
        assert_eq!(read("mysql://db?tls=on").unwrap().server.tls, Some(TlsOptions::new()));
        assert_eq!(read("mysql://db/app").unwrap().database.as_deref(), Some("app"));
        assert!(read("mysql://db/app?ssl-mode=required&connect_timeout=10").unwrap().server.tls.is_some());
        assert!(read("mysql://db/app?sslMode=DISABLED").unwrap().server.tls.is_none());
        assert_eq!(read("mysql://db/app?fencing=table").unwrap().fencing, TokenSource::Table);
        assert_eq!(read("mysql://db?prefix=").unwrap().server.prefix, "");
    }

    #[test]
    fn refuses_what_makes_no_sense_and_says_what_to_do() {
        for (url, part) in [
            ("mysql://", "mysql://user@host:3306"),
            ("mysql://a,b", "primary"),
            ("mysql://db:port", "not a number"),
            ("mysql://db/a/b", "slash"),
            ("mysql://db?lease=500ms", "at least"),
            ("mysql://db?lease=25h", "at most 1day"),
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

    #[tokio::test]
    async fn what_a_program_sets_is_checked_as_what_a_url_says() {
        let refusal = async |set: fn(&mut MySqlOptions)| {
            let mut options = MySqlOptions::listening_at(Endpoint::Socket("/run/mysqld.sock".into()));
            set(&mut options);
            options.connect(ClientBuilder::new()).await.unwrap_err().to_string()
        };
        let text = refusal(|options| options.server.tls = Some(TlsOptions::new())).await;
        assert!(text.contains("leave the options of TLS out"), "{text}");
        let text = refusal(|options| options.server.tls = Some(TlsOptions::new().authority("/ca.pem"))).await;
        assert!(text.contains("extra_ca"), "{text}");
        let text = refusal(|options| options.locks_per_connection = 0).await;
        assert!(text.contains("locks_per_connection"), "{text}");
        assert!(refusal(|_| {}).await.contains("no user"));
    }

    #[tokio::test]
    async fn shows_no_password() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "hunter2\n").unwrap();
        let of_file = read(&format!("mysql://me@db?password_file={}", file.display())).unwrap();
        let of_url = read("mysql://me:hunter2@db").unwrap();
        for options in [of_file, of_url] {
            let password = options.server.password.as_ref().unwrap().read().await.unwrap();
            assert_eq!(password.reveal(), "hunter2");
            assert!(!format!("{options:?}").contains("hunter2"));
        }
    }
}
