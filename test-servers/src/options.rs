//! What the options of all servers have in common.

use std::path::Path;

use crate::Certificates;

/// How a server encrypts its connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Encryption {
    /// Not, or only if the client asks for it.
    #[default]
    None,
    Tls,
    TlsWithClientCertificates,
}

impl Encryption {
    /// Returns the options of a URL for a client of a server that has these files; `ca` is the one that names the authority.
    pub(crate) fn url_options(self, ca: &'static str, files: &Certificates) -> Vec<(&'static str, String)> {
        let path = |path: &Path| path.display().to_string();
        let Certificates { authority, client, .. } = files;
        let trusts = (ca, path(authority));
        match self {
            Self::None => Vec::new(),
            Self::Tls => vec![trusts],
            Self::TlsWithClientCertificates => {
                vec![trusts, ("cert", path(&client.certificate)), ("key", path(&client.key))]
            }
        }
    }
}

/// Gives the options of a server the methods that those of every server have: with the documentation of `tls` and of
/// `setting`, which differ.
macro_rules! common_options {
    ($options:ident, tls: $tls:literal, setting: $setting:literal) => {
        impl $options {
            /// Sets the port, instead of a free one: the TLS port, if there are two.
            #[must_use]
            pub fn port(mut self, port: u16) -> Self {
                self.port = Some(port);
                self
            }

            #[doc = $tls]
            #[must_use]
            pub fn tls(mut self) -> Self {
                self.encryption = $crate::options::Encryption::Tls;
                self
            }

            /// Like `tls`, and requires a certificate from every client.
            #[must_use]
            pub fn tls_with_client_certificates(mut self) -> Self {
                self.encryption = $crate::options::Encryption::TlsWithClientCertificates;
                self
            }

            #[doc = $setting]
            #[must_use]
            pub fn setting(mut self, name: &str, value: &str) -> Self {
                self.settings.push((name.to_owned(), value.to_owned()));
                self
            }
        }
    };
}

pub(crate) use common_options;
