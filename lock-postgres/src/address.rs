//! Turns options into the connect options of the client crate.

use lock_core::HolderInfo;
use lock_kit::Endpoint;
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use crate::options::{PostgresOptions, socket_of};

/// The longest name of a client that the server keeps.
const LONGEST_CLIENT_NAME: usize = 63;

/// The connect options of a client's connections, without the password. Whatever the client crate has read from the
/// environment is replaced.
pub(crate) fn connect_options(options: &PostgresOptions, holder: &HolderInfo) -> PgConnectOptions {
    let user = options.server.user.as_deref().unwrap_or_default();
    let mut wanted = PgConnectOptions::new_without_pgpass()
        .username(user)
        .password("")
        .database(options.database.as_deref().unwrap_or(user))
        .application_name(&client_name(holder))
        .extra_float_digits(None)
        .statement_cache_capacity(0)
        .disable_statement_logging();
    wanted = match &options.server.endpoint {
        Endpoint::Tcp { host, port } => wanted.host(host).port(*port),
        Endpoint::Socket(path) => match socket_of(path) {
            Some((folder, port)) => wanted.socket(folder).port(port),
            None => wanted.socket(path),
        },
    };
    let Some(tls) = &options.server.tls else { return wanted.ssl_mode(PgSslMode::Disable) };
    wanted = wanted.ssl_mode(PgSslMode::VerifyFull);
    // The client crate reads the files again for each connection.
    wanted = match tls.authority_file() {
        Some(authority) => wanted.ssl_root_cert(authority),
        None => wanted.ssl_root_cert_from_pem(Vec::new()),
    };
    match tls.client_files() {
        Some((certificate, key)) => wanted.ssl_client_cert(certificate).ssl_client_key(key),
        None => wanted,
    }
}

/// What the server shows of a client: `distlock 4711@host label`, as much of it as it keeps.
pub(crate) fn client_name(holder: &HolderInfo) -> String {
    let label = holder.label.as_ref().map(|label| format!(" {label}")).unwrap_or_default();
    let name = format!("distlock {}@{}{label}", holder.pid, holder.host);
    // The server replaces other characters.
    let plain = name.chars().map(|character| if matches!(character, ' '..='~') { character } else { '?' });
    plain.take(LONGEST_CLIENT_NAME).collect()
}

/// The process, host and label of a client, from the name that the server shows.
pub(crate) fn client_of(name: &str) -> Option<(u32, &str, Option<&str>)> {
    let (pid, rest) = name.strip_prefix("distlock ")?.split_once('@')?;
    let (host, label) = rest.split_once(' ').map_or((rest, None), |(host, label)| (host, Some(label)));
    Some((pid.parse().ok()?, host, label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_shows_who_a_client_is() {
        let mut holder = HolderInfo::of_this_process();
        holder.pid = 7;
        holder.host = "db-1.internal".to_owned();
        assert_eq!(client_of(&client_name(&holder)), Some((7, "db-1.internal", None)));
        holder.label = Some("the nightly report".to_owned());
        assert_eq!(client_of(&client_name(&holder)), Some((7, "db-1.internal", Some("the nightly report"))));
        holder.label = Some("é".repeat(100));
        let name = client_name(&holder);
        assert!(name.len() == 63 && name.is_ascii(), "{name}");
        assert_eq!(client_of("psql"), None);
    }
}
