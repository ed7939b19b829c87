//! Turns options into the connect options of the client crate.

use sqlx::ConnectOptions as _;
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

use crate::options::{MySqlOptions, Place};

/// The connect options of a client's connections. Their `Debug` output contains the password: never print it.
pub(crate) fn connect_options(options: &MySqlOptions) -> MySqlConnectOptions {
    // The client crate's own settings would cost a round trip, and nothing here depends on them.
    let mut wanted = MySqlConnectOptions::new()
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .set_names(false)
        .statement_cache_capacity(0)
        .disable_statement_logging();
    wanted = match &options.place {
        Place::Tcp { host, port } => wanted.host(host).port(*port).ssl_mode(MySqlSslMode::Disabled),
        Place::Socket(path) => wanted.socket(path).ssl_mode(MySqlSslMode::Disabled),
        Place::Tls { host, port, certificates } => {
            let mut wanted = wanted.host(host).port(*port).ssl_mode(MySqlSslMode::VerifyIdentity);
            if let Some(authority) = &certificates.authority {
                wanted = wanted.ssl_ca(authority);
            }
            if let Some((certificate, key)) = &certificates.client {
                wanted = wanted.ssl_client_cert(certificate).ssl_client_key(key);
            }
            wanted
        }
    };
    if let Some(user) = &options.user {
        wanted = wanted.username(user);
    }
    if let Some(password) = &options.password {
        wanted = wanted.password(password.reveal());
    }
    if let Some(database) = &options.database {
        wanted = wanted.database(database);
    }
    wanted
}
