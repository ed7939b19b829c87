//! The options for starting an etcd server.

use crate::options::{Encryption, common_options};

/// The options for starting an etcd server. By default it allows every client everything, and speaks plain text.
#[derive(Debug, Clone, Default)]
pub struct EtcdOptions {
    pub(super) port: Option<u16>,
    pub(super) encryption: Encryption,
    pub(super) users: Vec<User>,
    pub(super) settings: Vec<(String, String)>,
    pub(super) is_oldest: bool,
}

/// A user who may read and write what begins with a prefix.
#[derive(Debug, Clone)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: String,
    pub(super) prefix: String,
}

common_options!(
    EtcdOptions,
    tls: "Speaks only TLS, with certificates of an authority made for this server.",
    setting: r#"Adds an option of the program: `("auth-token-ttl", "2")`."#
);

impl EtcdOptions {
    /// Creates the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses a server of etcd 3.4, which has known faults.
    #[must_use]
    pub fn oldest(self) -> Self {
        Self { is_oldest: true, ..self }
    }

    /// Adds a user who may read and write what begins with `prefix`, and refuses clients without a login from then on. The server's
    /// URL contains the first user.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str, prefix: &str) -> Self {
        let [name, password, prefix] = [name, password, prefix].map(str::to_owned);
        self.users.push(User { name, password, prefix });
        self
    }
}
