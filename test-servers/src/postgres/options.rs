//! The options for starting a PostgreSQL server.

use crate::options::{Encryption, common_options};

/// The options for starting a server. By default it speaks plain text, and has one database and one user without any
/// privileges, both named `locks`.
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    pub(super) port: Option<u16>,
    pub(super) encryption: Encryption,
    users: Vec<User>,
    settings: Vec<(String, String)>,
}

#[derive(Debug, Clone)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: String,
    grants: Vec<String>,
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
        let grants = grants.iter().map(|&grant| grant.to_owned()).collect();
        self.users.push(User { name: name.to_owned(), password: password.to_owned(), grants });
        self
    }

    /// Returns the settings of the command line.
    pub(super) fn arguments(&self) -> impl Iterator<Item = String> {
        self.settings.iter().flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")])
    }

    /// Returns the user in the server's URL.
    pub(super) fn login(&self) -> User {
        let plain = || User { name: "locks".to_owned(), password: "secret".to_owned(), grants: Vec::new() };
        self.users.first().cloned().unwrap_or_else(plain)
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
        let first = [self.login()];
        let users = if self.users.is_empty() { &first[..] } else { &self.users };
        // SCRAM takes a client that was compiled without optimisation half a second for each connection.
        let encryption = if self.encryption == Encryption::None { "md5" } else { "scram-sha-256" };
        let statements = users.iter().flat_map(|User { name, password, grants }| {
            let create = format!("CREATE ROLE {name} LOGIN PASSWORD '{password}'");
            let grants = grants.iter().map(move |grant| format!("GRANT {grant} TO {name}"));
            std::iter::once(create).chain(grants)
        });
        std::iter::once(format!("SET password_encryption='{encryption}'")).chain(statements).collect()
    }
}
