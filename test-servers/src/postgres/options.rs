//! The options for starting a PostgreSQL server.

use crate::options::{Encryption, common_options};
use crate::sql::{User, at_least_one};

/// The options for starting a server. By default it speaks plain text, and has one database and one user without any
/// privileges, both named `locks`.
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    pub(super) port: Option<u16>,
    pub(super) encryption: Encryption,
    users: Vec<User>,
    settings: Vec<(String, String)>,
}

common_options!(
    PostgresOptions,
    tls: "Refuses TCP connections without TLS. The certificates are those of an authority made for this server.",
    setting: r#"Adds a setting of the server: `("max_connections", "5")`."#
);

impl PostgresOptions {
    /// Creates the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a user with these grants (`"CREATE ON SCHEMA public"`, `"pg_monitor"`). The server's URL contains the first
    /// user.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str, grants: &[&str]) -> Self {
        self.users.push(User::new(name, password, grants));
        self
    }

    /// Returns the settings of the command line.
    pub(super) fn arguments(&self) -> impl Iterator<Item = String> {
        self.settings.iter().flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")])
    }

    /// Returns the users; the first is in the server's URL.
    pub(super) fn users(&self) -> Vec<User> {
        at_least_one(&self.users)
    }

    /// Returns the rules about who may connect, and how.
    pub(super) fn rules(&self) -> String {
        let rule = match self.encryption {
            Encryption::None => "host all all 127.0.0.1/32 md5",
            Encryption::Tls => "hostssl all all 127.0.0.1/32 scram-sha-256",
            Encryption::TlsWithClientCertificates => {
                "hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca"
            }
        };
        format!("local all all trust\n{rule}\n")
    }

    /// Returns the statements that create the users.
    pub(super) fn statements(&self) -> Vec<String> {
        // SCRAM takes a client that was compiled without optimisation half a second for each connection.
        let encryption = if self.encryption == Encryption::None { "md5" } else { "scram-sha-256" };
        let mut statements = vec![format!("SET password_encryption='{encryption}'")];
        for User { name, password, grants } in self.users() {
            statements.push(format!("CREATE ROLE {name} LOGIN PASSWORD '{password}'"));
            statements.extend(grants.iter().map(|grant| format!("GRANT {grant} TO {name}")));
        }
        statements
    }
}
