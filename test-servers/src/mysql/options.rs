//! The options for starting a MySQL or MariaDB server.

use crate::left_out;
use crate::options::{Encryption, common_options};
use crate::sql::{User, at_least_one};

/// The servers that speak the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MySqlFlavour {
    /// The installed `mariadbd`.
    MariaDb,
    /// `MySQL` 5.7, from an npm package.
    MySql57,
}

impl MySqlFlavour {
    /// Both.
    pub const ALL: [Self; 2] = [Self::MariaDb, Self::MySql57];

    /// Returns the word that leaves its tests out in `DISTLOCK_SKIP`.
    pub fn skip_word(self) -> &'static str {
        match self {
            Self::MariaDb => "mariadb",
            Self::MySql57 => "mysql57",
        }
    }

    /// Returns why its tests are to be left out, if the user wants that: by its own word, or by `mysql`, which applies
    /// to both.
    pub fn left_out(self) -> Option<String> {
        left_out(self.skip_word()).or_else(|| left_out("mysql"))
    }
}

/// The options for starting a server. By default it speaks plain text, and has one user `locks` without any privileges.
#[derive(Debug, Clone)]
pub struct MySqlOptions {
    pub(super) flavour: MySqlFlavour,
    pub(super) port: Option<u16>,
    pub(super) encryption: Encryption,
    pub(super) databases: Vec<String>,
    users: Vec<User>,
    settings: Vec<(String, String)>,
    pub(super) time_zone: Option<String>,
}

common_options!(
    MySqlOptions,
    tls: "Refuses TCP connections without TLS. The certificates are those of an authority made for this server.",
    setting: r#"Adds an option of the server's command line: `("max_connections", "5")`."#
);

impl MySqlOptions {
    /// Creates the default options.
    pub fn new(flavour: MySqlFlavour) -> Self {
        Self {
            flavour,
            port: None,
            encryption: Encryption::None,
            databases: Vec::new(),
            users: Vec::new(),
            settings: Vec::new(),
            time_zone: None,
        }
    }

    /// Adds an empty database.
    #[must_use]
    pub fn database(mut self, name: &str) -> Self {
        self.databases.push(name.to_owned());
        self
    }

    /// Adds a user with these grants (`"ALL ON locks.*"`, `"PROCESS ON *.*"`). The server's URL contains the first
    /// user.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str, grants: &[&str]) -> Self {
        self.users.push(User::new(name, password, grants));
        self
    }

    /// Sets the server's time zone, in the form of the variable `TZ`.
    #[must_use]
    pub fn time_zone(mut self, zone: &str) -> Self {
        self.time_zone = Some(zone.to_owned());
        self
    }

    /// Returns the options of the command line.
    pub(super) fn arguments(&self) -> impl Iterator<Item = String> {
        self.settings.iter().map(|(name, value)| format!("--{name}={value}"))
    }

    /// Returns the users; the first is in the server's URL.
    pub(super) fn users(&self) -> Vec<User> {
        at_least_one(&self.users)
    }

    /// Returns the statements that create databases and users.
    pub(super) fn statements(&self) -> Vec<String> {
        let mut statements: Vec<_> =
            self.databases.iter().map(|name| format!("CREATE DATABASE IF NOT EXISTS `{name}`")).collect();
        let requires = match self.encryption {
            Encryption::None => "",
            Encryption::Tls => " REQUIRE SSL",
            Encryption::TlsWithClientCertificates => " REQUIRE X509",
        };
        for User { name, password, grants } in self.users() {
            for (host, requires) in [("127.0.0.1", requires), ("localhost", "")] {
                let account = format!("'{name}'@'{host}'");
                statements.push(format!("CREATE USER {account} IDENTIFIED BY '{password}'{requires}"));
                statements.extend(grants.iter().map(|grant| format!("GRANT {grant} TO {account}")));
            }
        }
        statements
    }
}
