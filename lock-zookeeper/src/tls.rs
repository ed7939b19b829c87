//! Encrypted connections. They need the feature `tls`, because the client library's TLS depends on a second cryptography library,
//! written in C, which takes longer to compile than all the rest.

use lock_core::LockError;
use lock_kit::{TlsOptions, invalid};
#[cfg(feature = "tls")]
pub(crate) use with::check;
#[cfg(not(feature = "tls"))]
pub(crate) use without::check;
use zookeeper_client::{Client, Connector, Error};

/// Opens a session; encrypted if there are options of TLS.
pub(crate) async fn connect(
    connector: Connector,
    hosts: &str,
    tls: Option<&TlsOptions>,
) -> Result<Result<Client, Error>, LockError> {
    match tls {
        None => Ok(connector.connect(hosts).await),
        #[cfg(feature = "tls")]
        Some(tls) => Ok(connector.with_tls(with::read(tls)?).secure_connect(hosts).await),
        #[cfg(not(feature = "tls"))]
        Some(_) => Err(without::left_out()),
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    use super::{LockError, TlsOptions, invalid};

    /// Checks that these options can be used for these servers.
    pub(crate) fn check<'a>(_: &TlsOptions, _: impl Iterator<Item = &'a str>) -> Result<(), LockError> {
        Err(left_out())
    }

    pub(super) fn left_out() -> LockError {
        invalid("TLS to ZooKeeper is not compiled in").remedy(
            "build distlock or distlock-cli with the cargo feature \"zookeeper-tls\" (lock-zookeeper with \"tls\"), or leave out \
             tls, ca, cert and key",
        )
    }
}

#[cfg(feature = "tls")]
mod with {
    use rustls::crypto::CryptoProvider;
    use rustls::pki_types::ServerName;
    use zookeeper_client::TlsOptions as ClientTls;

    use super::{Error, LockError, TlsOptions, invalid};

    /// Checks that these options can be used for these servers.
    pub(crate) fn check<'a>(
        tls: &TlsOptions,
        mut hosts: impl Iterator<Item = &'a str>,
    ) -> Result<(), LockError> {
        if let Some(context) = hosts.find(|context| ServerName::try_from(*context).is_err()) {
            return Err(invalid(format!("{context:?} cannot be a name in a certificate"))
                .remedy("name the servers as their certificates do"));
        }
        if tls.authority_file().is_none() {
            return Err(invalid("the authority of the servers' certificates is missing")
                .remedy("name it with the option ca, as a file in PEM format"));
        }
        Ok(())
    }

    /// Reads the files. The client library uses the process's default cryptography provider. If several are compiled in and the
    /// program has chosen none, this function has to choose one.
    pub(super) fn read(tls: &TlsOptions) -> Result<ClientTls, LockError> {
        let unusable = |error: Error| {
            invalid(format!("a certificate or key cannot be used: {error}")).remedy(
                "check the files that the options ca, cert and key name: they have to be in PEM format",
            )
        };
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread has chosen a provider at this moment.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let files = tls.read()?;
        // It begins with no authorities, so only those of the file count.
        let mut options = ClientTls::new();
        if let Some(authority) = files.authority {
            options = options.with_pem_ca(&String::from_utf8_lossy(&authority)).map_err(unusable)?;
        }
        if let Some(client) = files.client {
            let [certificate, key] =
                [&client.certificate, &client.key].map(|pem| String::from_utf8_lossy(pem));
            options = options.with_pem_identity(&certificate, &key).map_err(unusable)?;
        }
        Ok(options)
    }
}
