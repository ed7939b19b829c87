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
    let Some(tls) = &options.server.tls else {
        return with_login(wanted.ssl_mode(MySqlSslMode::Disabled), options);
    };
    wanted = wanted.ssl_mode(MySqlSslMode::VerifyIdentity);
    // The client crate reads the files again for each connection.
    if let Some(authority) = tls.authority_file() {
        wanted = wanted.ssl_ca(authority);
    }
    if let Some((certificate, key)) = tls.client_files() {
        wanted = wanted.ssl_client_cert(certificate).ssl_client_key(key);
    }
    with_login(wanted, options)
}

fn with_login(mut wanted: MySqlConnectOptions, options: &MySqlOptions) -> MySqlConnectOptions {
    if let Some(user) = &options.server.user {
        wanted = wanted.username(user);
    }
    if let Some(database) = &options.database {
        wanted = wanted.database(database);
    }
    wanted
}
