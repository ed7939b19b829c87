//! Turns options into the connect options of the client crate.

use lock_kit::Endpoint;
use sqlx::ConnectOptions as _;
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

use crate::options::MySqlOptions;

/// The connect options of a client's connections, without the password.
pub(crate) fn connect_options(options: &MySqlOptions) -> MySqlConnectOptions {
    // The client crate's own settings would cost a round trip, and nothing here depends on them.
    let mut wanted = MySqlConnectOptions::new()
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .set_names(false)
        .statement_cache_capacity(0)
        .disable_statement_logging();
    wanted = match &options.server.endpoint {
        Endpoint::Tcp { host, port } => wanted.host(host).port(*port),
        Endpoint::Socket(path) => wanted.socket(path),
    };
    if let Some(user) = &options.server.user {
        wanted = wanted.username(user);
    }
    if let Some(database) = &options.database {
        wanted = wanted.database(database);
    }
    let Some(tls) = &options.server.tls else { return wanted.ssl_mode(MySqlSslMode::Disabled) };
    wanted = wanted.ssl_mode(MySqlSslMode::VerifyIdentity);
    // The client crate reads the files again for each connection.
    if let Some(authority) = tls.authority_file() {
        wanted = wanted.ssl_ca(authority);
    }
    match tls.client_files() {
        Some((certificate, key)) => wanted.ssl_client_cert(certificate).ssl_client_key(key),
        None => wanted,
    }
}
