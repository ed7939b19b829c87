//! The options for starting a ZooKeeper server.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::access::SUPER_DIGEST;
use crate::Certificates;
use crate::options::{Encryption, common_options};

/// The options for starting a ZooKeeper server. By default it allows every client everything and speaks plain text.
/// Sessions last between one second and one minute, as their clients request. An acknowledged change has been passed to
/// the operating system, but is not necessarily on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZooKeeperOptions {
    pub(super) port: Option<u16>,
    pub(super) encryption: Encryption,
    pub(super) login: Option<Login>,
    tick: Duration,
    sasl_users: Vec<Login>,
    settings: Vec<(String, String)>,
    properties: Vec<(String, String)>,
}

/// The user in the server's URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
    pub(super) means: Means,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    Digest,
    Sasl,
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        Self {
            port: None,
            encryption: Encryption::None,
            login: None,
            tick: Duration::from_millis(500),
            sasl_users: Vec::new(),
            settings: Vec::new(),
            properties: Vec::new(),
        }
    }
}

common_options!(
    ZooKeeperOptions,
    tls: "Speaks TLS, on a second port beside the one for plain text, with certificates of an authority made for this server. The server's address and URL are those of the TLS port.",
    setting: r#"Adds a line to the server's configuration: `("syncLimit", "4")`. The last line of a name counts."#
);

impl ZooKeeperOptions {
    /// Creates the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the server's unit of time: sessions end at a multiple of it, and the members of an ensemble ping each other
    /// twice in each unit. The default is half a second.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Puts this name and password into the server's URL. The server need not know them beforehand: a client that
    /// presents them may do what an access list grants to `auth`.
    #[must_use]
    pub fn digest_user(mut self, name: &str, password: &str) -> Self {
        self.login.get_or_insert_with(|| Login::new(name, password, Means::Digest));
        self
    }

    /// Adds a user that authenticates with SASL DIGEST-MD5. The server's URL contains the first user.
    #[must_use]
    pub fn sasl_user(mut self, name: &str, password: &str) -> Self {
        let login = Login::new(name, password, Means::Sasl);
        self.login.get_or_insert_with(|| login.clone());
        self.sasl_users.push(login);
        self
    }

    /// Makes quotas refuse requests that exceed them, instead of only logging them.
    #[must_use]
    pub fn enforced_quotas(self) -> Self {
        self.setting("enforceQuota", "true")
    }

    /// Sets how often the server looks for containers without children, and removes them. The default is a minute.
    #[must_use]
    pub fn containers_checked_every(self, interval: Duration) -> Self {
        self.property("znode.container.checkIntervalMs", &interval.as_millis().to_string())
    }

    /// Sets a Java system property, from which ZooKeeper reads some settings: `("jute.maxbuffer", "4096")`.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the server's configuration, with all its files in `folder`.
    pub(super) fn configuration(&self, folder: &Path, ports: Ports, files: Option<&Certificates>) -> String {
        let path = |name: &str| folder.join(name).display().to_string();
        let mut lines = String::new();
        let mut say = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "{name}={value}");
        };
        say("dataDir", &path(DATA));
        say("clientPortAddress", "127.0.0.1");
        say("clientPort", &ports.plain.to_string());
        say("maxClientCnxns", "0");
        say("tickTime", &self.tick.as_millis().to_string());
        say("minSessionTimeout", "1000");
        say("maxSessionTimeout", "60000");
        say("initLimit", "20");
        say("syncLimit", "4");
        say("admin.enableServer", "false");
        say("4lw.commands.whitelist", "*");
        if let (Some(files), Some(port)) = (files, ports.secure) {
            let wants = self.encryption == Encryption::TlsWithClientCertificates;
            say("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory");
            say("secureClientPortAddress", "127.0.0.1");
            say("secureClientPort", &port.to_string());
            say("ssl.keyStore.type", "PEM");
            say("ssl.keyStore.location", &path(KEY_STORE));
            say("ssl.trustStore.type", "PEM");
            say("ssl.trustStore.location", &files.authority.display().to_string());
            say("ssl.clientAuth", if wants { "need" } else { "none" });
            // The certificate of a client contains no host name.
            say("ssl.hostnameVerification", "false");
        }
        if !self.sasl_users.is_empty() {
            say("authProvider.sasl", "org.apache.zookeeper.server.auth.SASLAuthenticationProvider");
        }
        for (name, value) in &self.settings {
            say(name, value);
        }
        lines
    }

    /// Returns the users, in Java's format; `None` when there are none.
    pub(super) fn users(&self) -> Option<String> {
        let mut users = String::new();
        for Login { user, password, .. } in &self.sasl_users {
            // Writing to a string cannot fail.
            let _ = write!(users, "\n    user_{user}=\"{password}\"");
        }
        let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
        (!users.is_empty()).then(|| format!("Server {{\n    {module} required{users};\n}};\n"))
    }

    /// Returns the properties for the Java command line: `-Dname=value`.
    pub(super) fn properties(&self, folder: &Path) -> Vec<String> {
        let mut all = vec![
            "-Dzookeeper.forceSync=no".to_owned(),
            format!("-Dzookeeper.DigestAuthenticationProvider.superDigest={SUPER_DIGEST}"),
            // In kilobytes: the initial size of the transaction log.
            "-Dzookeeper.preAllocSize=1024".to_owned(),
        ];
        if !self.sasl_users.is_empty() {
            all.push(format!("-Djava.security.auth.login.config={}", folder.join(USERS).display()));
        }
        all.extend(self.properties.iter().map(|(name, value)| format!("-D{name}={value}")));
        all
    }
}

impl Login {
    fn new(user: &str, password: &str, means: Means) -> Self {
        Self { user: user.to_owned(), password: password.to_owned(), means }
    }
}

/// The ports on which a server listens for clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) plain: u16,
    pub(super) secure: Option<u16>,
}

pub(super) const DATA: &str = "data";
pub(super) const KEY_STORE: &str = "server-with-key.pem";
pub(super) const USERS: &str = "users.jaas";
