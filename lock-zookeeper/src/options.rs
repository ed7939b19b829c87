//! The options of a client, and the functions that connect with them.

use std::time::Duration;

use lock_core::{BackendContext, ClientBuilder, ErrorKind, LockClient, LockError, Operation, Password};
use lock_entries::Failed;
use lock_kit::{
    Authorities, BackendOptions, Driver, LONGEST_LEASE, LockUrl, TlsOptions, UrlOptions, connect_backend,
    invalid, split_port,
};
use zookeeper_client::{Client, Error, SaslOptions};

use crate::backend::{ZooKeeperEntries, capabilities};
use crate::contender::Accepted;
use crate::failure::Failure;
use crate::session::term;
use crate::tls;

/// The servers, the folder of the locks on them, and how the client keeps locks there.
///
/// ```no_run
/// use std::time::Duration;
///
/// use lock_core::ClientBuilder;
/// use lock_zookeeper::ZooKeeperOptions;
///
/// # async fn run() -> Result<(), lock_core::LockError> {
/// let mut options = ZooKeeperOptions::at("zoo1:2181,zoo2:2181,zoo3:2181", "/locks");
/// options.session_timeout = Duration::from_secs(15);
/// let locks = options.connect(ClientBuilder::new()).await?;
/// let guard = locks.mutex("orders-42")?.acquire().await?;
/// guard.release().await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ZooKeeperOptions {
    /// The servers: `host:port`, separated by commas.
    pub hosts: String,
    /// The folder of the locks on the servers.
    pub root: String,
    /// How long the servers keep the locks of a client from which they hear nothing; 10 s by default, from 1 s to a day. The servers
    /// may negotiate another timeout, within `minSessionTimeout` and `maxSessionTimeout` (2 and 20 ticks by default); the client
    /// then logs a warning.
    ///
    /// **Choose at least four ticks of the servers** (`tickTime`, 2 s by default), and use the same tick on all servers: what a
    /// heartbeat proves depends on it. A hold relies on two thirds of the timeout.
    pub session_timeout: Duration,
    /// The permissions of the nodes that this client creates.
    pub access: Access,
    /// The source of fencing tokens.
    pub fencing: TokenSource,
    /// The programs whose nodes count as contenders.
    pub accepted: Accepted,
    /// The user, who needs a password.
    pub user: Option<String>,
    /// The user's password, or where each new session gets it. It appears in no output.
    pub password: Option<Password>,
    /// How the client uses user and password.
    pub authentication: Authentication,
    /// How connections are encrypted; `None` for plain text. It needs an authority, as the client library does not know those of the
    /// system, and the feature `tls`; without it, connecting fails.
    pub tls: Option<TlsOptions>,
}

/// The permissions (ACL) of the nodes that a client creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Access {
    /// Every user may do everything. This is also Curator's default.
    #[default]
    Open,
    /// Only the user who created a node may use it.
    Creator,
}

/// How a client authenticates itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Authentication {
    /// The client sends user and password with the scheme `digest`. A server never refuses them: a wrong password makes the client
    /// a different user, who owns no node.
    #[default]
    Digest,
    /// SASL with DIGEST-MD5: the server knows its users, and refuses all others.
    Sasl,
}

/// The source of fencing tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TokenSource {
    /// The token is the id of the transaction that created the holder's node (its `czxid`). A writer that goes on reading keeps its
    /// token. It costs no extra request.
    #[default]
    Czxid,
    /// Grants have no fencing token.
    None,
}

/// The folder of the locks if the URL names none.
const DEFAULT_ROOT: &str = "/distlock";

const SHORTEST_SESSION_TIMEOUT: Duration = Duration::from_secs(1);

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        Self::at("localhost", DEFAULT_ROOT)
    }
}

impl ZooKeeperOptions {
    /// Options for these servers (`host:port`, separated by commas) and this folder of locks.
    pub fn at(hosts: impl Into<String>, root: impl Into<String>) -> Self {
        Self {
            hosts: hosts.into(),
            root: root.into(),
            session_timeout: Duration::from_secs(10),
            access: Access::default(),
            fencing: TokenSource::default(),
            accepted: Accepted::default(),
            user: None,
            password: None,
            authentication: Authentication::default(),
            tls: None,
        }
    }

    /// Connects to the servers.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for options that do not fit together or do not fit the servers; [`ErrorKind::Unreachable`] and
    /// [`ErrorKind::Denied`] with what the servers answered and what to do about it.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt to connect.
    pub async fn connect(mut self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.password = builder.own_password().cloned().or(self.password);
        self.check()?;
        self.check_login()?;
        let capabilities = capabilities(&self, builder.renewal_interval(term(self.session_timeout)));
        let builder = builder.server(self.server());
        connect_backend(builder, capabilities, move |context| {
            ZooKeeperEntries::connect(context, self.clone())
        })
        .await
    }

    /// The servers' addresses, for errors and the log. They leave out what could be the rest of a password that is not encoded.
    fn server(&self) -> String {
        let root = if self.root.contains('@') { "" } else { &self.root };
        format!("zookeeper://{}{root}", self.hosts)
    }

    fn check_login(&self) -> Result<(), LockError> {
        if self.user.is_some() != self.password.is_some() {
            return Err(invalid("the user has no password, or the password no user")
                .remedy("write user:password@ into the URL, or name a password_file for its user"));
        }
        if self.authentication == Authentication::Sasl && self.user.is_none() {
            return Err(
                invalid("SASL needs a user and a password").remedy("write user:password@ into the URL")
            );
        }
        if let Some(tls) = &self.tls {
            tls::check(tls, self.hosts.split(',').map(|server| split_port(server).0))?;
        }
        let has_identity =
            self.user.is_some() || self.tls.as_ref().is_some_and(|tls| tls.client_files().is_some());
        if self.access == Access::Creator && !has_identity {
            return Err(invalid("acl=creator needs an authenticated creator")
                .remedy("give user and password or a client certificate, or leave out acl=creator"));
        }
        Ok(())
    }

    /// The request timeout as long as the negotiated session timeout is not known.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.session_timeout / 3
    }

    /// Opens a session. The client library logs in again with this password on each connection of the session.
    pub(crate) async fn open(&self, context: &BackendContext) -> Result<Client, LockError> {
        let mut connector =
            Client::connector().with_session_timeout(self.session_timeout).with_fail_eagerly();
        let password = lock_kit::read_password(context, self.password.as_ref(), self.session_timeout).await?;
        if let (Some(user), Some(password)) = (&self.user, &password) {
            connector = match self.authentication {
                Authentication::Digest => {
                    connector.with_auth("digest", format!("{user}:{}", password.reveal()).as_bytes())
                }
                Authentication::Sasl => {
                    connector.with_sasl(SaslOptions::digest_md5(user.clone(), password.reveal().to_owned()))
                }
            };
        }
        let connected = tls::connect(connector, &self.hosts, self.tls.as_ref()).await?;
        let client = connected.map_err(|error| self.explain(error))?;
        if self.authentication == Authentication::Sasl {
            check_who_we_are(&client).await?;
        }
        Ok(client)
    }

    /// Explains a failed connection. The client library does not report what was wrong with TLS, so the remedy names it.
    fn explain(&self, error: Error) -> LockError {
        let is_about_contact = matches!(error, Error::NoHosts | Error::Timeout);
        let explained = Failure::Told(error).explain(Operation::Connect);
        match &self.tls {
            Some(_) if is_about_contact => explained.remedy(
                "check that they run and can be reached, that they speak TLS on these ports, and that ca, cert and key are those that \
                 they accept",
            ),
            None if is_about_contact => explained
                .remedy("check that they run and can be reached, and that they do not want TLS on these ports (the option ca)"),
            _ => explained,
        }
    }
}

impl BackendOptions for ZooKeeperOptions {
    fn of_url(url: &LockUrl) -> Result<Self, LockError> {
        let root = match url.path().trim_end_matches('/') {
            "" if url.path().is_empty() => DEFAULT_ROOT,
            root => root,
        };
        let (user, password) = (url.user()?, url.password()?.map(Password::from));
        Ok(Self { user, password, ..Self::at(url.hosts(), root) })
    }

    fn visit(&mut self, options: &mut UrlOptions) -> Result<(), LockError> {
        let limits = SHORTEST_SESSION_TIMEOUT..=LONGEST_LEASE;
        options.duration("session_timeout", &mut self.session_timeout, limits)?;
        options.choice("acl", &mut self.access, &[("open", Access::Open), ("creator", Access::Creator)])?;
        let ways = [("digest", Authentication::Digest), ("sasl", Authentication::Sasl)];
        options.choice("auth", &mut self.authentication, &ways)?;
        let sources = [("czxid", TokenSource::Czxid), ("none", TokenSource::None)];
        options.choice("fencing", &mut self.fencing, &sources)?;
        let programs = [("curator", Accepted::Curator), ("kazoo", Accepted::CuratorAndKazoo)];
        options.choice("accept", &mut self.accepted, &programs)?;
        options.password_file("password_file", &mut self.password)?;
        TlsOptions::visit_switched(&mut self.tls, options, Authorities::OfFile)?;
        if self.hosts.contains('/') {
            return Err(invalid("the list of servers contains a path")
                .remedy("name the folder as the root of the locks"));
        }
        if self.hosts.is_empty() {
            return Err(invalid("no server is named").remedy("write zookeeper://host:2181/locks"));
        }
        check_root(&self.root)
    }

    fn lease(&self) -> Option<Duration> {
        Some(term(self.session_timeout))
    }

    async fn connect(self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.connect(builder).await
    }
}

/// Connects to the servers that `url` names: `zookeeper://[user:password@]host[:port][,host[:port]…][/folder]`.
/// `docs/backends/zookeeper.md` has the options.
///
/// # Errors
/// Those of [`lock_kit::connect`].
///
/// # Cancel safety
/// Dropping the future ends the attempt to connect.
pub async fn connect(url: &LockUrl, builder: ClientBuilder) -> Result<LockClient, LockError> {
    lock_kit::connect::<ZooKeeperOptions>(url, builder).await
}

/// Checks that SASL has authenticated this client: a server without SASL admits every client, as an anonymous user.
async fn check_who_we_are(client: &Client) -> Result<(), LockError> {
    match client.list_auth_users().await {
        Ok(users) if users.iter().any(|user| user.scheme() == "sasl") => Ok(()),
        Ok(_) => Err(LockError::new(ErrorKind::Denied, Operation::Connect)
            .because("the server does not support SASL, and treats this client as anonymous")
            .remedy("give the servers a JAAS configuration, or leave out auth=sasl")),
        Err(Error::Unimplemented) => {
            tracing::warn!(
                target: "distlock",
                "the server is too old to tell whether it has accepted the user (ZooKeeper 3.7 can)"
            );
            Ok(())
        }
        Err(error) => Err(Failure::Told(error).explain(Operation::Connect)),
    }
}

fn check_root(root: &str) -> Result<(), LockError> {
    let unacceptable = |cause: &str| {
        invalid(format!("the folder of the locks is invalid: {cause}"))
            .remedy("write for example zookeeper://host:2181/locks")
    };
    let Some(path) = root.strip_prefix('/').filter(|path| !path.is_empty()) else {
        return Err(unacceptable("it has to be a path, and not the root"));
    };
    for part in path.split('/') {
        match part {
            "" | "." | ".." => return Err(unacceptable("a part of it is empty, . or ..")),
            _ if !part.chars().all(crate::backend::is_accepted) => {
                return Err(unacceptable("it has characters that ZooKeeper does not allow"));
            }
            _ => {}
        }
    }
    if path == "zookeeper" || path.starts_with("zookeeper/") {
        return Err(unacceptable("/zookeeper belongs to the servers"));
    }
    Ok(())
}

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::of::<ZooKeeperOptions>("zookeeper", &["zookeeper"])
    .summary("locks across machines, kept by a ZooKeeper ensemble")
    .examples(&["zookeeper://zoo1,zoo2,zoo3/locks", "zookeeper://zoo1,zoo2,zoo3/locks?session_timeout=30s"]);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<ZooKeeperOptions, LockError> {
        let (options, rest) = lock_kit::read::<ZooKeeperOptions>(&LockUrl::parse(url).unwrap())?;
        rest.finish()?;
        Ok(options)
    }

    fn refusal(url: &str) -> String {
        read(url).and_then(|options| options.check_login()).unwrap_err().to_string()
    }

    #[test]
    fn reads_hosts_and_folder() {
        let options = read("zookeeper://h1:2181,h2:2182/apps/locks?session_timeout=15s").unwrap();
        assert_eq!((options.hosts.as_str(), options.root.as_str()), ("h1:2181,h2:2182", "/apps/locks"));
        assert_eq!(options.session_timeout, Duration::from_secs(15));
        assert_eq!(read("zookeeper://h1").unwrap().root, "/distlock");
        assert_eq!(read("zookeeper://h1/locks/").unwrap().root, "/locks");
    }

    #[test]
    fn reads_every_option() {
        let options = read(
            "zookeeper://me:secret@h1/locks?acl=creator&auth=sasl&fencing=none&accept=kazoo&tls=on&ca=/ca.pem&cert=/c.pem&key=/k.pem",
        )
        .unwrap();
        assert_eq!(options.access, Access::Creator);
        assert_eq!(options.authentication, Authentication::Sasl);
        assert_eq!(options.fencing, TokenSource::None);
        assert_eq!(options.accepted, Accepted::CuratorAndKazoo);
        let files = TlsOptions::new().authority("/ca.pem").client_certificate("/c.pem", "/k.pem");
        assert_eq!(options.tls, Some(files));
        assert_eq!(read("zookeeper://h1/locks").unwrap().tls, None);
        let authority = TlsOptions::new().authority("/ca.pem");
        assert_eq!(read("zookeeper://h1/locks?ca=/ca.pem").unwrap().tls, Some(authority));
    }

    #[test]
    fn refuses_what_makes_no_sense_and_says_what_to_do() {
        for (url, part) in [
            ("zookeeper:///locks", "zookeeper://host:2181"),
            ("zookeeper://h1/", "not the root"),
            ("zookeeper://h1/a//b", "empty"),
            ("zookeeper://h1/a/../b", ".."),
            ("zookeeper://h1/zookeeper/x", "/zookeeper"),
            ("zookeeper://h1/a%01", "characters"),
            ("zookeeper://h1/a?session_timeout=500ms", "at least 1s"),
            ("zookeeper://h1/a?session_timeout=25h", "at most 1day"),
            ("zookeeper://h1/a?acl=all", "creator"),
            ("zookeeper://h1/a?acl=creator", "user and password"),
            ("zookeeper://h1/a?auth=sasl", "user:password@"),
            ("zookeeper://somebody@h1/a", "password"),
            ("zookeeper://me:secret@h1/a?password_file=/x", "leave one"),
            ("zookeeper://me@h1/a?password_file=/nonexistent/x", "/nonexistent/x"),
            ("zookeeper://h1/a?cert=/c.pem", "both"),
            ("zookeeper://h1/a?tls=off&ca=/ca.pem", "leave one"),
            ("zookeeper://h1/a?lease=3s", "\"lease\""),
        ] {
            let text = refusal(url);
            assert!(text.contains(part), "{url}: {text}");
            assert!(!text.contains("secret"), "{url}: {text}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn refuses_certificates_that_cannot_be_checked_and_says_what_to_do() {
        for (url, part) in [
            ("zookeeper://h1/a?tls=on", "option ca"),
            ("zookeeper://h1/a?cert=/c.pem&key=/k.pem", "option ca"),
            ("zookeeper://h1,h 2:2181/a?ca=/ca.pem", "\"h 2\""),
            ("zookeeper://[::1]:2181,/a?ca=/ca.pem", "\"\""),
        ] {
            let text = refusal(url);
            assert!(text.contains(part), "{url}: {text}");
        }
        read("zookeeper://h1:2281,[::1]:2281/a?ca=/ca.pem").unwrap().check_login().unwrap();
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn names_the_feature_that_tls_needs() {
        for options in ["tls=on", "ca=/ca.pem", "cert=/c.pem&key=/k.pem", "tls=on&ca=/ca.pem"] {
            let text = refusal(&format!("zookeeper://h1/locks?{options}"));
            assert!(text.contains("not compiled in") && text.contains("zookeeper-tls"), "{options}: {text}");
        }
        read("zookeeper://h1/locks?tls=off").unwrap().check_login().unwrap();
    }

    #[test]
    fn a_hold_relies_on_two_thirds_of_the_session_that_is_asked_for() {
        let of = |url: &str| (crate::DRIVER.lease_of)(&LockUrl::parse(url).unwrap());
        assert_eq!(of("zookeeper://h1").unwrap(), Some(Duration::from_secs(10) * 2 / 3));
        assert_eq!(of("zookeeper://h1?session_timeout=30s").unwrap(), Some(Duration::from_secs(20)));
        assert!(
            of("zookeeper://h1?session_timeout=soon").unwrap_err().to_string().contains("session_timeout")
        );
    }

    #[tokio::test]
    async fn shows_no_password() {
        let options = read("zookeeper://me:hunter2@h1/locks").unwrap();
        let password = options.password.as_ref().unwrap().read().await.unwrap();
        assert_eq!(password.reveal(), "hunter2");
        assert!(!format!("{options:?}").contains("hunter2"));
    }
}
