//! Turns the options into the settings of the `redis` crate.

use lock_core::{LockError, Operation, Secret};
use lock_kit::{Endpoint, TlsFiles, TlsOptions};
use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    TlsCertificates,
};

use crate::failure::explain;

/// A server, and who the client is there.
pub(super) struct Login<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) tls: Option<&'a TlsOptions>,
    pub(super) user: Option<&'a str>,
    pub(super) password: Option<&'a Secret>,
    pub(super) database: u32,
}

/// Makes the `redis` client that opens connections to the server.
pub(super) fn client(login: &Login<'_>, language: ProtocolVersion) -> Result<Client, LockError> {
    let failed = |error| explain(Operation::Connect, error);
    let address = match login.endpoint {
        Endpoint::Tcp { host, port } if login.tls.is_some() => {
            ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
        }
        Endpoint::Tcp { host, port } => ConnectionAddr::Tcp(host.clone(), *port),
        Endpoint::Socket(path) => ConnectionAddr::Unix(path.clone()),
    };
    let mut settings = RedisConnectionInfo::default()
        .set_protocol(language)
        .set_db(i64::from(login.database))
        .set_lib_name("distlock", env!("CARGO_PKG_VERSION"));
    if let Some(password) = login.password {
        settings = settings.set_password(password.reveal());
    }
    if let Some(user) = login.user {
        settings = settings.set_username(user);
    }
    let info = address
        .into_connection_info()
        .map_err(failed)?
        .set_redis_settings(settings)
        // A request is one small packet, and the client waits for its reply.
        .set_tcp_settings(TcpSettings::default().set_nodelay(true));
    match login.tls {
        Some(tls) => {
            use_a_crypto_provider();
            Client::build_with_tls(info, certificates(tls.read()?)).map_err(failed)
        }
        None => Client::open(info).map_err(failed),
    }
}

/// Installs a TLS crypto provider, unless the program has chosen one of its own.
fn use_a_crypto_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread was faster, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// With an authority, the `redis` crate trusts only that one; otherwise it trusts the system's.
fn certificates(files: TlsFiles) -> TlsCertificates {
    let client_tls = files
        .client
        .map(|client| ClientTlsConfig { client_cert: client.certificate, client_key: client.key });
    TlsCertificates { client_tls, root_cert: files.authority }
}
