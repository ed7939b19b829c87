//! Encrypted connections. They need the feature `tls`, because the client library's TLS brings along a second library of
//! cryptography, written in C, which takes longer to compile than all the rest.

use std::path::PathBuf;

use lock_core::LockError;
#[cfg(feature = "tls")]
pub(crate) use with::check;
#[cfg(not(feature = "tls"))]
pub(crate) use without::check;
use zookeeper_client::{Client, Connector, Error};

use crate::options::invalid;

/// Files that a TLS connection needs, in PEM format.
#[derive(Debug, Clone, Default)]
pub(crate) struct Certificates {
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "the URL is refused whatever it names"))]
    pub(crate) authority: Option<PathBuf>,
    /// The files of the client's certificate and its key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

/// Opens a session; encrypted if there are certificates.
pub(crate) async fn connect(
    connector: Connector,
    hosts: &str,
    certificates: Option<&Certificates>,
) -> Result<Result<Client, Error>, LockError> {
    match certificates {
        None => Ok(connector.connect(hosts).await),
        #[cfg(feature = "tls")]
        Some(certificates) => Ok(connector.with_tls(with::read(certificates)?).secure_connect(hosts).await),
        #[cfg(not(feature = "tls"))]
        Some(_) => Err(without::left_out()),
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    use super::{Certificates, LockError, invalid};

    /// Checks that these certificates can be used for these servers.
    pub(crate) fn check<'a>(_: &Certificates, _: impl Iterator<Item = &'a str>) -> Result<(), LockError> {
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
    use std::path::Path;

    use rustls::crypto::CryptoProvider;
    use rustls::pki_types::ServerName;
    use zookeeper_client::TlsOptions;

    use super::{Certificates, Error, LockError, invalid};

    /// Checks that these certificates can be used for these servers.
    pub(crate) fn check<'a>(
        certificates: &Certificates,
        mut hosts: impl Iterator<Item = &'a str>,
    ) -> Result<(), LockError> {
        if let Some(context) = hosts.find(|context| ServerName::try_from(*context).is_err()) {
            return Err(invalid(format!("{context:?} is no name that a certificate could be for"))
                .remedy("name the servers as their certificates do"));
        }
        if certificates.authority.is_none() {
            return Err(invalid("a certificate that the servers' are checked against is missing")
                .remedy("name it with the option ca, as a file in PEM format"));
        }
        Ok(())
    }

    /// Reads the files. The client library uses the process's default cryptography provider. If several are compiled in and the
    /// program has chosen none, this function has to choose one.
    pub(super) fn read(certificates: &Certificates) -> Result<TlsOptions, LockError> {
        let unusable = |error: Error| {
            invalid(format!("a certificate or key is of no use: {error}")).remedy(
                "check the files that the options ca, cert and key name: they have to be in PEM format",
            )
        };
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread has chosen a provider at this moment.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let mut options = match &certificates.authority {
            None => TlsOptions::new(),
            Some(file) => TlsOptions::new().with_pem_ca(&text_in(file)?).map_err(unusable)?,
        };
        if let Some((certificate, key)) = &certificates.client {
            options = options.with_pem_identity(&text_in(certificate)?, &text_in(key)?).map_err(unusable)?;
        }
        Ok(options)
    }

    fn text_in(file: &Path) -> Result<String, LockError> {
        std::fs::read_to_string(file).map_err(|error| {
            invalid(format!("the file {} cannot be read: {error}", file.display()))
                .remedy("check the options ca, cert and key")
        })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_file_that_is_no_certificate_is_named() {
            let missing = Certificates { authority: Some("/nonexistent/ca.pem".into()), client: None };
            let text = read(&missing).unwrap_err().to_string();
            assert!(text.contains("/nonexistent/ca.pem") && text.contains("ca, cert and key"), "{text}");
        }
    }
}
