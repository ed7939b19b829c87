//! The options for starting a Redis server.

use std::fmt::Write as _;
use std::path::Path;

use crate::Certificates;
use crate::options::{Encryption, common_options};

/// The options for starting a Redis server. By default it allows every client everything, speaks plain text, and keeps
/// no data when it ends.
#[derive(Debug, Clone, Default)]
pub struct RedisOptions {
    pub(super) port: Option<u16>,
    pub(super) encryption: Encryption,
    pub(super) login: Option<Login>,
    persistence: Persistence,
    default_user: DefaultUser,
    users: Vec<String>,
    settings: Vec<(String, String)>,
}

/// The user in the server's URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Persistence {
    #[default]
    None,
    AppendOnly,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum DefaultUser {
    #[default]
    WithoutPassword,
    WithPassword(String),
    Off,
}

/// The user of the fixture itself.
pub(super) const OWN_USER: &str = "fixture";

common_options!(
    RedisOptions,
    tls: "Speaks only TLS, with certificates of an authority made for this server.",
    setting: r#"Adds a line to the server's configuration: `("maxmemory", "10mb")`, `("rename-command", "CLIENT \"\"")`, `("enable-debug-command", "yes")`."#
);

impl RedisOptions {
    /// Creates the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requires this password from every client. The server's URL contains it.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.default_user = DefaultUser::WithPassword(password.to_owned());
        self.login = Some(Login { user: None, password: password.to_owned() });
        self
    }

    /// Adds a user with the permissions in `rules` (`~distlock:* +evalsha …`, as in `ACL SETUSER`), and refuses clients
    /// without a user name from then on. The server's URL contains the first user.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str, rules: &str) -> Self {
        self.users.push(format!("user {name} on >{password} {rules}"));
        if self.default_user == DefaultUser::WithoutPassword {
            self.default_user = DefaultUser::Off;
        }
        self.login
            .get_or_insert_with(|| Login { user: Some(name.to_owned()), password: password.to_owned() });
        self
    }

    /// Writes every change to the disk before it answers.
    #[must_use]
    pub fn append_only(mut self) -> Self {
        self.persistence = Persistence::AppendOnly;
        self
    }

    /// Returns the users, in the format of an ACL file.
    pub(super) fn access_list(&self, own_password: &str) -> String {
        let default = match &self.default_user {
            DefaultUser::WithoutPassword => "on nopass ~* &* +@all".to_owned(),
            DefaultUser::WithPassword(password) => format!("on >{password} ~* &* +@all"),
            DefaultUser::Off => "off".to_owned(),
        };
        let mut list = format!("user default {default}\nuser {OWN_USER} on >{own_password} ~* &* +@all\n");
        for user in &self.users {
            list.push_str(user);
            list.push('\n');
        }
        list
    }

    /// Returns the server's configuration, with all its files in `folder`.
    pub(super) fn configuration(
        &self,
        folder: &Path,
        port: u16,
        certificates: Option<&Certificates>,
    ) -> String {
        let path = |name: &str| folder.join(name).display().to_string();
        let mut lines = String::new();
        let mut say = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "{name} {value}");
        };
        say("bind", "127.0.0.1");
        say("daemonize", "no");
        say("dir", &path(""));
        say("unixsocket", &path("redis.sock"));
        say("aclfile", &path("users.acl"));
        say("save", "\"\"");
        match self.persistence {
            Persistence::None => say("appendonly", "no"),
            Persistence::AppendOnly => {
                say("appendonly", "yes");
                say("appendfsync", "always");
            }
        }
        match certificates {
            None => say("port", &port.to_string()),
            Some(certificates) => {
                say("port", "0");
                say("tls-port", &port.to_string());
                say("tls-cert-file", &certificates.server.certificate.display().to_string());
                say("tls-key-file", &certificates.server.key.display().to_string());
                say("tls-ca-cert-file", &certificates.authority.display().to_string());
                let wants = self.encryption == Encryption::TlsWithClientCertificates;
                say("tls-auth-clients", if wants { "yes" } else { "no" });
            }
        }
        for (name, value) in &self.settings {
            say(name, value);
        }
        lines
    }
}
