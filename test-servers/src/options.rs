//! The options for starting a server.

use crate::MySqlFlavour;

/// The options for starting a server. By default it speaks plain text and listens on a free port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerOptions {
    pub(crate) port: Option<u16>,
    pub(crate) encryption: Encryption,
    pub(crate) flavour: MySqlFlavour,
    pub(crate) is_oldest: bool,
    pub(crate) database: Option<String>,
    pub(crate) users: Vec<User>,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) properties: Vec<(String, String)>,
}

/// How a server encrypts its connections, with how many files a client needs for that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Encryption {
    /// Not, or only if the client asks for it.
    #[default]
    None = 0,
    Tls = 1,
    TlsWithClientCertificates = 3,
}

/// A user of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) password: String,
    pub(crate) rights: Vec<String>,
}

impl ServerOptions {
    /// Creates the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the port, instead of a free one: the TLS port, if there are two.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        Self { port: Some(port), ..self }
    }

    /// Speaks TLS, with certificates of the authority that all servers of this program have. A server speaks nothing else over TCP, except that ZooKeeper
    /// has a second port for plain text; its address and URL are those of the TLS port.
    #[must_use]
    pub fn tls(self) -> Self {
        Self { encryption: Encryption::Tls, ..self }
    }

    /// Like `tls`, and requires a certificate from every client.
    #[must_use]
    pub fn tls_with_client_certificates(self) -> Self {
        Self { encryption: Encryption::TlsWithClientCertificates, ..self }
    }

    /// Sets which of the servers that speak the protocol of `MySQL` is started. The default is `MariaDB`.
    #[must_use]
    pub fn flavour(self, flavour: MySqlFlavour) -> Self {
        Self { flavour, ..self }
    }

    /// Uses a server of etcd 3.4, which has known faults.
    #[must_use]
    pub fn oldest(self) -> Self {
        Self { is_oldest: true, ..self }
    }

    /// Adds an empty database to `MySQL`.
    #[must_use]
    pub fn database(self, name: &str) -> Self {
        Self { database: Some(name.to_owned()), ..self }
    }

    /// Adds a user. The server's URL contains the first one. Where a server has users, it refuses clients without a login. The rights
    /// are
    ///
    /// * with Redis as in `ACL SETUSER`: `"~distlock:* +evalsha"`;
    /// * with etcd the prefix of what the user may read and write;
    /// * with the SQL servers as in `GRANT`: `"PROCESS ON *.*"`, `"CREATE ON SCHEMA public"`. Without any user they have one, `locks`,
    ///   that has no rights;
    /// * with ZooKeeper how the user logs in: `"sasl"`, or `"digest"`. The server need not know those beforehand: a client that presents
    ///   the name and the password may do what an access list grants to `auth`.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str, rights: &[&str]) -> Self {
        let rights = rights.iter().map(|&right| right.to_owned()).collect();
        self.users.push(User { name: name.to_owned(), password: password.to_owned(), rights });
        self
    }

    /// Requires this password from every client of Redis that has no user name.
    #[must_use]
    pub fn password(self, password: &str) -> Self {
        self.user("", password, &["~* &* +@all"])
    }

    /// Adds a setting of the server: `("max_connections", "5")`. The last one of a name counts.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets what the process of the server gets beside its settings: with ZooKeeper a system property of Java, with `MySQL` a variable.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the settings as options of a command line.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = String> {
        self.settings.iter().map(|(name, value)| format!("--{name}={value}"))
    }

    /// Returns the settings as lines of a file.
    pub(crate) fn lines(&self, separator: char) -> String {
        let lines = self.settings.iter().map(|(name, value)| format!("{name}{separator}{value}\n"));
        lines.collect::<Vec<_>>().concat()
    }

    pub(crate) fn has_setting(&self, of: &str) -> bool {
        self.settings.iter().any(|(name, _)| name == of)
    }

    pub(crate) fn speaks_tls(&self) -> bool {
        self.encryption != Encryption::None
    }
}
