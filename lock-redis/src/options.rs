//! The options of a client: where the server is, how it keeps the locks, and how to connect.

use std::num::NonZeroU32;
use std::time::Duration;

use lock_core::{ClientBuilder, LockClient, LockError, Password};
use lock_kit::{
    Authorities, BackendOptions, Driver, Endpoint, LONGEST_LEASE, LockUrl, ServerOptions, TlsOptions,
    UrlOptions, connect_backend, invalid,
};

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
/// let mut options = RedisOptions::at("cache.internal", 6379);
/// options.server.lease = Duration::from_secs(15);
/// let locks = options.connect(ClientBuilder::new()).await?;
/// let guard = locks.mutex("orders/42")?.acquire().await?;
/// guard.release().await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// The server. The lease is at least 1 s. The prefix is that of all keys and channels: 1 to 100 printable ASCII characters
    /// without spaces and braces, `distlock` by default.
    pub server: ServerOptions,
    /// The number of the database; 0 by default.
    pub database: u32,
    /// Acquires nothing from a server that started more recently than this; zero by default. A server that forgot its locks in
    /// a restart then grants them only after their holders have had the time to notice the loss. If the server does not persist
    /// every write, set it to the longest lease in use.
    pub restart_delay: Duration,
    /// The sentinels that know the primary. Then the endpoint of `server` means nothing, and its TLS holds for both.
    pub sentinels: Option<SentinelOptions>,
    /// The nodes of a cluster that say which node has what. More than half of them have to answer, each name has to lead to the same
    /// node for ever, and all clients have to name the same ones. Then the endpoint of `server` means nothing.
    pub cluster: Vec<Endpoint>,
    /// The longest lease that a lock may ask for. By default that is the client's, with sentinels or a cluster, and otherwise a day.
    /// With these, no client takes a lock from a new primary for a little longer than this, so use the same for all clients.
    pub max_lease: Option<Duration>,
    /// How many replicas must have a grant or a release before it counts; none by default. While fewer answer, no lock is granted, and
    /// a release is an error. Renewals wait for none.
    pub durable: Option<Durability>,
}

/// How many replicas must have what a client writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// At least this many.
    Replicas(NonZeroU32),
    /// As many as this client has seen in sync with the primary at one time, and at least one.
    All,
}

/// The sentinels that watch over a primary and its replicas. All clients have to name the same ones.
#[derive(Debug, Clone, Default)]
pub struct SentinelOptions {
    /// Where each of them listens. More than half of them have to answer.
    pub endpoints: Vec<Endpoint>,
    /// The primary's name in their configuration.
    pub primary: String,
    /// The user at the sentinels.
    pub user: Option<String>,
    /// The password at the sentinels, or where each new connection gets it. It appears in no output.
    pub password: Option<Password>,
}

/// The port of a Redis server, if none is given.
const DEFAULT_PORT: u16 = 6379;

/// The port of a sentinel, if none is given.
const SENTINEL_PORT: u16 = 26379;

pub(crate) const SHORTEST_LEASE: Duration = Duration::from_secs(1);

const LONGEST_PREFIX: usize = 100;

impl Default for RedisOptions {
    fn default() -> Self {
        Self::at("localhost", DEFAULT_PORT)
    }
}

impl RedisOptions {
    /// A server that listens on TCP.
    pub fn at(host: impl Into<String>, port: u16) -> Self {
        Self::listening_at(Endpoint::Tcp { host: host.into(), port })
    }

    /// A server that listens there.
    pub fn listening_at(endpoint: Endpoint) -> Self {
        let server = ServerOptions::at(endpoint, "distlock");
        Self {
            server,
            database: 0,
            restart_delay: Duration::ZERO,
            sentinels: None,
            cluster: Vec::new(),
            max_lease: None,
            durable: None,
        }
    }

    /// The primary that these sentinels know by this name.
    ///
    /// ```
    /// use lock_kit::Endpoint;
    /// use lock_redis::RedisOptions;
    ///
    /// let at = |host: &str| Endpoint::Tcp { host: host.to_owned(), port: 26379 };
    /// let options = RedisOptions::behind_sentinels([at("s1"), at("s2"), at("s3")], "mymaster");
    /// assert_eq!(options.sentinels.unwrap().endpoints.len(), 3);
    /// ```
    pub fn behind_sentinels(
        endpoints: impl IntoIterator<Item = Endpoint>,
        primary: impl Into<String>,
    ) -> Self {
        let endpoints = endpoints.into_iter().collect();
        let sentinels = SentinelOptions { endpoints, primary: primary.into(), ..SentinelOptions::default() };
        Self { sentinels: Some(sentinels), ..Self::default() }
    }

    /// A cluster, of which these nodes say which node has what: three or five of them, since more than half of them have to answer.
    ///
    /// ```
    /// use lock_kit::Endpoint;
    /// use lock_redis::RedisOptions;
    ///
    /// let at = |host: &str| Endpoint::Tcp { host: host.to_owned(), port: 6379 };
    /// assert_eq!(RedisOptions::of_cluster([at("n1"), at("n2"), at("n3")]).cluster.len(), 3);
    /// ```
    pub fn of_cluster(nodes: impl IntoIterator<Item = Endpoint>) -> Self {
        Self { cluster: nodes.into_iter().collect(), ..Self::default() }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        !self.cluster.is_empty()
    }

    /// Whether another server may become the primary, and others say which one is.
    pub(crate) fn follows_primaries(&self) -> bool {
        self.sentinels.is_some() || self.is_cluster()
    }

    /// The longest lease of a hold.
    pub(crate) fn longest_lease(&self) -> Duration {
        let default = if self.follows_primaries() { self.server.lease } else { LONGEST_LEASE };
        self.max_lease.unwrap_or(default)
    }

    /// How long any client relies on a primary without a sign of the witnesses: two renewal intervals, with what clocks may differ.
    pub(crate) fn longest_reliance(&self) -> Duration {
        self.longest_lease() * 13 / 25
    }

    /// Connects to the server.
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
        self.server.prepare(&builder, None)?;
        self.check()?;
        self.check_login()?;
        let (builder, capabilities) = (builder.server(self.server()), capabilities(&self));
        connect_backend(builder, capabilities, move |context| RedisBackend::connect(context, self.clone()))
            .await
    }

    /// Where the server is, for error messages and the log.
    pub(crate) fn server(&self) -> String {
        let Self { server: ServerOptions { endpoint, tls, .. }, database, .. } = self;
        let scheme = if tls.is_some() { "rediss" } else { "redis" };
        let joined = |all: &[Endpoint]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        if let Some(SentinelOptions { endpoints, primary, .. }) = &self.sentinels {
            return format!("{scheme}+sentinel://{}/{primary}/{database}", joined(endpoints));
        }
        if self.is_cluster() {
            return format!("{scheme}+cluster://{}", joined(&self.cluster));
        }
        match endpoint {
            Endpoint::Socket(_) => format!("unix://{endpoint}?db={database}"),
            Endpoint::Tcp { .. } => format!("{scheme}://{endpoint}/{database}"),
        }
    }

    fn check_login(&self) -> Result<(), LockError> {
        if self.server.user.is_some() && self.server.password.is_none() {
            return Err(invalid("the user has no password")
                .remedy("write user:password@ into the URL, or name a password_file"));
        }
        match &self.sentinels {
            Some(SentinelOptions { user: Some(_), password: None, .. }) => {
                Err(invalid("the sentinel_user has no password").remedy("name a sentinel_password_file"))
            }
            _ => Ok(()),
        }
    }

    /// Takes the options of the sentinels, and checks which they are.
    fn visit_sentinels(&mut self, options: &mut UrlOptions) -> Result<(), LockError> {
        const USER: &str = "sentinel_user";
        const PASSWORD: &str = "sentinel_password_file";
        let Some(sentinels) = &mut self.sentinels else {
            return match options.take(USER).or(options.take(PASSWORD)) {
                None => Ok(()),
                Some(_) => Err(invalid(format!("the options {USER:?} and {PASSWORD:?} are for sentinels"))
                    .remedy(format!("write {SENTINEL_EXAMPLE}, or leave them out"))),
            };
        };
        sentinels.user = options.take(USER).or(sentinels.user.take());
        options.password_file(PASSWORD, &mut sentinels.password)?;
        names_each_once(&sentinels.endpoints)?;
        // With an unencoded slash in a password, what follows it would be taken for the name.
        let name = &sentinels.primary;
        if sentinels.endpoints.is_empty() || name.is_empty() || name.contains('@') {
            return Err(invalid("the sentinels, or the name of the primary, are missing")
                .remedy(format!("write {SENTINEL_EXAMPLE}, and %2F for a slash in a password")));
        }
        Ok(())
    }
}

fn names_each_once(endpoints: &[Endpoint]) -> Result<(), LockError> {
    if (1..endpoints.len()).any(|number| endpoints[..number].contains(&endpoints[number])) {
        return Err(invalid("a server is named twice, and would count twice").remedy("name each once"));
    }
    Ok(())
}

const CLUSTER_EXAMPLE: &str = "redis+cluster://n1,n2,n3";

const SENTINEL_EXAMPLE: &str = "redis+sentinel://s1,s2,s3/mymaster";

impl BackendOptions for RedisOptions {
    fn of_url(url: &LockUrl) -> Result<Self, LockError> {
        let (mut options, database) = if url.scheme().ends_with("+sentinel") {
            let (primary, database) = match url.path().trim_matches('/').split_once('/') {
                Some((primary, database)) => (primary, Some(database)),
                None => (url.path().trim_matches('/'), None),
            };
            (Self::behind_sentinels(endpoints(url, SENTINEL_PORT, SENTINEL_EXAMPLE)?, primary), database)
        } else if url.scheme().ends_with("+cluster") {
            (Self::of_cluster(endpoints(url, DEFAULT_PORT, CLUSTER_EXAMPLE)?), url.database()?)
        } else if url.scheme() == "unix" {
            if !url.hosts().is_empty() || !url.path().starts_with('/') {
                return Err(invalid("the URL names no socket").remedy("write unix:///path/to/redis.sock"));
            }
            (Self::listening_at(Endpoint::Socket(url.path().into())), None)
        } else {
            let endpoint = Endpoint::parse(url.hosts(), DEFAULT_PORT, "redis://host:6379")?;
            (Self::listening_at(endpoint), url.database()?)
        };
        // The scheme says whether there is TLS.
        options.server.tls = url.scheme().starts_with("rediss").then(TlsOptions::new);
        options.server.log_in_as(url)?;
        if let Some(number) = database {
            if url.options().take("db").is_some() {
                return Err(invalid("the database is given twice").remedy("leave ?db= out"));
            }
            options.database = number.parse().map_err(|_| {
                // The text must not appear in the error: after an unencoded slash in a password it is the rest of the password.
                invalid("the database is not a number")
                    .remedy("write for example redis://host/0, and %2F for a slash in a password")
            })?;
        }
        Ok(options)
    }

    fn visit(&mut self, options: &mut UrlOptions) -> Result<(), LockError> {
        self.server.visit(options, SHORTEST_LEASE)?;
        options.number("db", &mut self.database, 0..=u32::MAX)?;
        options.duration("restart_delay", &mut self.restart_delay, Duration::ZERO..=Duration::MAX)?;
        options.optional_duration(
            "max_lease",
            &mut self.max_lease,
            self.server.lease..=LONGEST_LEASE,
            "the lease with Sentinel and Cluster, otherwise 1day",
        )?;
        if let Some(text) = options.take("durable") {
            let number = text.strip_prefix("replicas:").and_then(|number| number.parse().ok());
            let all = (text == "all").then_some(Durability::All);
            self.durable = Some(number.map(Durability::Replicas).or(all).ok_or_else(|| {
                invalid("the option \"durable\" is invalid")
                    .remedy("write durable=replicas:1, or durable=all")
            })?);
        }
        self.visit_sentinels(options)?;
        names_each_once(&self.cluster)?;
        if self.is_cluster() && (self.sentinels.is_some() || self.database != 0) {
            return Err(invalid("a cluster has neither sentinels nor another database than 0")
                .remedy(format!("write {CLUSTER_EXAMPLE}")));
        }
        let was_off = self.server.tls.is_none();
        TlsOptions::visit(&mut self.server.tls, options, Authorities::OfFile)?;
        if was_off && self.server.tls.is_some() && matches!(self.server.endpoint, Endpoint::Tcp { .. }) {
            return Err(invalid("the options \"ca\", \"cert\" and \"key\" are for TLS")
                .remedy("write rediss:// instead of redis://, or leave them out"));
        }
        let is_plain = |character: char| character.is_ascii_graphic() && !matches!(character, '{' | '}');
        let prefix = &self.server.prefix;
        if prefix.is_empty() || prefix.len() > LONGEST_PREFIX || !prefix.chars().all(is_plain) {
            return Err(invalid("the prefix is invalid").remedy(format!(
                "use 1 to {LONGEST_PREFIX} printable ASCII characters without spaces and braces"
            )));
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

/// Connects to the server that `url` names: `redis://[user:password@]host[:port][/database]`, `rediss://…` for TLS,
/// `unix:///path/to/socket?db=…` for a Unix socket, `redis+sentinel://sentinel[:port],…/primary[/database]` and
/// `rediss+sentinel://…` for a primary that sentinels know, `redis+cluster://node[:port],…` and `rediss+cluster://…` for a cluster.
/// `docs/backends/redis.md` has the options.
///
/// # Errors
/// Those of [`lock_kit::connect`].
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect(url: &LockUrl, builder: ClientBuilder) -> Result<LockClient, LockError> {
    lock_kit::connect::<RedisOptions>(url, builder).await
}

fn endpoints(url: &LockUrl, port: u16, example: &str) -> Result<Vec<Endpoint>, LockError> {
    url.hosts().split(',').map(|host| Endpoint::parse(host, port, example)).collect()
}

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::of::<RedisOptions>("redis", &SCHEMES)
    .summary("locks across machines, kept by a Redis server")
    .examples(&[
        "redis://cache:6379",
        "redis://cache:6379?lease=60s",
        "rediss://app@cache?password_file=/etc/app/pw",
        "unix:///run/redis.sock",
        "redis+sentinel://s1,s2,s3/mymaster",
        "redis+cluster://n1,n2,n3",
    ]);

const SCHEMES: [&str; 7] =
    ["redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"];

#[cfg(test)]
mod tests {
    use lock_core::Failover;

    use super::*;

    fn read(url: &str) -> Result<RedisOptions, LockError> {
        let (options, rest) = lock_kit::read::<RedisOptions>(&LockUrl::parse(url)?)?;
        rest.finish()?;
        options.server.endpoint.check(options.server.tls.as_ref())?;
        options.check_login()?;
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
            assert_eq!(format!("{:?}", read(url).unwrap().server.endpoint), expected, "{url}");
            assert_eq!(read(url).unwrap().server.tls, None, "{url}");
        }
        let encrypted = read("rediss://cache?ca=/ca.pem&cert=/c.pem&key=/k.pem").unwrap();
        assert_eq!(encrypted.server(), "rediss://cache:6379/0");
        let files = TlsOptions::new().authority("/ca.pem").client_certificate("/c.pem", "/k.pem");
        assert_eq!(encrypted.server.tls, Some(files));
        assert_eq!(read("rediss://cache").unwrap().server.tls, Some(TlsOptions::new()));
        assert_eq!(read("redis://cache/3").unwrap().database, 3);
        for (url, shown) in [
            ("redis+cluster://n1,[::1]:7", "redis+cluster://n1:6379,[::1]:7"),
            ("rediss+cluster://a:b@n1,n2/0", "rediss+cluster://n1:6379,n2:6379"),
            ("redis+sentinel://s1,[::1]:7/main", "redis+sentinel://s1:26379,[::1]:7/main/0"),
            ("rediss+sentinel://a:b@s1:1/main/3?ca=/ca.pem", "rediss+sentinel://s1:1/main/3"),
        ] {
            assert_eq!(read(url).unwrap().server(), shown);
        }
        assert_eq!(read("unix:///run/redis.sock?db=3").unwrap().database, 3);
    }

    #[test]
    fn refuses_what_makes_no_sense_and_says_what_to_do() {
        for (url, part) in [
            ("redis://", "redis://host:6379"),
            ("redis://a,b", "primary"),
            ("redis://cache:port", "not a number"),
            ("redis://cache/first", "not a number"),
            ("redis://cache/0/1", "slash"),
            ("redis://cache/0?db=1", "twice"),
            ("redis://cache?lease=500ms", "at least 1s"),
            ("redis://cache?lease=25h", "at most 1day"),
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
            ("redis+cluster://", "redis+cluster://n1"),
            ("redis+cluster://n1,n2,n1", "twice"),
            ("redis+cluster://n1/3", "another database"),
            ("redis+cluster://n1?sentinel_user=me", "redis+sentinel://"),
            ("redis+sentinel://s1,s2", "mymaster"),
            ("redis+sentinel://s1,,s2/mymaster", "names no server"),
            ("redis+sentinel://s1,s2,s1/mymaster", "twice"),
            ("redis+sentinel://s1/mymaster/first", "not a number"),
            ("redis+sentinel://me:1/secret@s1/mymaster", "%2F"),
            ("redis+sentinel://s1/mymaster?sentinel_user=me", "sentinel_password_file"),
            ("redis+sentinel://s1/mymaster?max_lease=10s", "at least 30s"),
            ("redis://cache?sentinel_user=me", "redis+sentinel://"),
            ("redis://cache?durable=replicas:0", "durable=replicas:1"),
            ("redis://cache?durable=2", "durable=all"),
        ] {
            let text = read(url).unwrap_err().to_string();
            assert!(text.contains(part), "{url}: {text}");
            assert!(!text.contains("secret"), "{url}: {text}");
        }
    }

    #[test]
    fn a_failover_overlaps_holds_only_where_no_witness_is_asked() {
        let of = |url| capabilities(&read(url).unwrap()).failover;
        assert_eq!(of("redis://cache"), Failover::MayOverlap);
        assert_eq!(of("redis+sentinel://s1,s2,s3/main"), Failover::LosesHolds);
        assert_eq!(of("redis+cluster://n1,n2,n3"), Failover::LosesHolds);
    }

    #[test]
    fn reads_how_many_replicas_are_needed() {
        let of = |url: &str| read(url).unwrap().durable;
        assert_eq!(of("redis://cache"), None);
        assert_eq!(of("redis://cache?durable=all"), Some(Durability::All));
        let two = NonZeroU32::new(2).map(Durability::Replicas);
        assert_eq!(of("redis+cluster://n1,n2,n3?durable=replicas:2"), two);
    }

    #[tokio::test]
    async fn what_a_program_sets_is_checked_as_what_a_url_says() {
        let refusal = async |set: fn(&mut RedisOptions)| {
            let mut options = RedisOptions::listening_at(Endpoint::Socket("/run/redis.sock".into()));
            set(&mut options);
            options.connect(ClientBuilder::new()).await.unwrap_err().to_string()
        };
        let text = refusal(|options| options.server.tls = Some(TlsOptions::new())).await;
        assert!(text.contains("leave the options of TLS out"), "{text}");
        let text = refusal(|options| options.server.lease = Duration::from_millis(500)).await;
        assert!(text.contains("\"lease\" is 500ms"), "{text}");
        let text = refusal(|options| options.server.prefix.clear()).await;
        assert!(text.contains("prefix"), "{text}");
    }

    #[test]
    fn the_lease_is_read_without_connecting() {
        let of = |url: &str| (crate::DRIVER.lease_of)(&LockUrl::parse(url).unwrap());
        assert_eq!(of("redis://cache").unwrap(), Some(Duration::from_secs(30)));
        assert_eq!(of("redis://cache?lease=6s").unwrap(), Some(Duration::from_secs(6)));
        let file = "redis+sentinel://s1/main?sentinel_password_file=/nonexistent/x";
        assert_eq!(of(file).unwrap(), Some(Duration::from_secs(30)));
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
            let password = options.server.password.as_ref().unwrap().read().await.unwrap();
            assert_eq!(password.reveal(), "hunter2");
            assert!(!format!("{options:?}").contains("hunter2"));
        }
    }
}
