//! The options of TLS, and the files that they name.

use std::path::{Path, PathBuf};

use lock_core::LockError;

use crate::failure::invalid;
use crate::url::UrlOptions;

/// How to encrypt the connections to a server. A connection is encrypted or fails, and the server's certificate has to be
/// valid for its name and come from an authority of the system, unless a file says [otherwise](Authorities).
///
/// ```
/// use lock_kit::{Authorities, LockUrl, TlsOptions};
///
/// let mut options = LockUrl::parse("server://db?ca=/etc/app/ca.pem")?.options();
/// let mut tls = None;
/// TlsOptions::visit(&mut tls, &mut options, Authorities::OfFile)?;
/// assert_eq!(tls, Some(TlsOptions::new().authority("/etc/app/ca.pem")));
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    authority: Option<(Authorities, PathBuf)>,
    client: Option<(PathBuf, PathBuf)>,
}

/// The authorities that a client trusts, if a file has some. A backend has one of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authorities {
    /// Those of the file alone: the option `ca`.
    OfFile,
    /// Those of the file and the system's, as the client library trusts these in any case: the option `extra_ca`.
    OfFileAndSystem,
}

/// The content of the files of [`TlsOptions`], in PEM format.
#[non_exhaustive]
pub struct TlsFiles {
    /// The authorities that the server's certificate has to come from.
    pub authority: Option<Vec<u8>>,
    /// What the client proves its identity with.
    pub client: Option<ClientCertificate>,
}

/// A certificate and its private key, in PEM format. Neither must get into an error, a log or a `Debug` text.
#[non_exhaustive]
pub struct ClientCertificate {
    /// The certificate, with those between it and its authority.
    pub certificate: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
}

impl TlsOptions {
    /// TLS with nothing but the authorities that the system trusts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the file of the authorities that the server's certificate has to come from.
    #[must_use]
    pub fn authority(mut self, file: impl Into<PathBuf>) -> Self {
        self.authority = Some((Authorities::OfFile, file.into()));
        self
    }

    /// Sets the file of authorities that are trusted besides the system's, for a backend whose client library trusts
    /// those in any case.
    #[must_use]
    pub fn extra_authority(mut self, file: impl Into<PathBuf>) -> Self {
        self.authority = Some((Authorities::OfFileAndSystem, file.into()));
        self
    }

    /// Sets the files of the client's certificate and its key.
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client = Some((certificate.into(), key.into()));
        self
    }

    /// Takes the files that a URL names into their place: `ca` or `extra_ca`, `cert` and `key`. Naming a file turns TLS on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) for a certificate without a key, for a key without a
    /// certificate, and if the place then has a file of authorities that the backend cannot trust in that way.
    pub fn visit(
        place: &mut Option<Self>,
        options: &mut UrlOptions,
        authorities: Authorities,
    ) -> Result<(), LockError> {
        let authority = options.take(authorities.option()).map(|file| (authorities, file.into()));
        let client = match (options.take("cert"), options.take("key")) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            _ => {
                return Err(invalid("a client certificate is a certificate and its key")
                    .remedy("give both of the options cert and key, or none"));
            }
        };
        if authority.is_some() || client.is_some() {
            *place = Some(Self { authority, client });
        }
        match place.as_ref().and_then(|tls| tls.authority.as_ref()) {
            Some((given, _)) if *given != authorities => {
                Err(invalid(format!("this backend has no {}", given.option()))
                    .remedy(format!("name the authority as {}", authorities.option())))
            }
            _ => Ok(()),
        }
    }

    /// Like [`TlsOptions::visit`], and takes the option `tls` (`on`, `off`) as well.
    ///
    /// # Errors
    /// Those of [`TlsOptions::visit`]; [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) for files with
    /// `tls=off`.
    pub fn visit_switched(
        place: &mut Option<Self>,
        options: &mut UrlOptions,
        authorities: Authorities,
    ) -> Result<(), LockError> {
        Self::visit(place, options, authorities)?;
        options.note_default("tls", "off");
        match options.take_choice("tls", &[("on", true), ("off", false)])? {
            Some(false) if place.is_some() => {
                Err(invalid("there are certificates, and tls=off").remedy("leave one of them out"))
            }
            Some(true) => {
                place.get_or_insert_default();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns the file of the authorities, if one is named.
    pub fn authority_file(&self) -> Option<&Path> {
        self.authority.as_ref().map(|(_, file)| file.as_path())
    }

    /// Returns the files of the client's certificate and its key, if they are named.
    pub fn client_files(&self) -> Option<(&Path, &Path)> {
        self.client.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()))
    }

    /// Reads the files. Read them again for each connection, so that a client takes up renewed certificates.
    ///
    /// ```no_run
    /// use lock_kit::TlsOptions;
    ///
    /// let files = TlsOptions::new().authority("/etc/app/ca.pem").read()?;
    /// let trusted = files.authority.unwrap_or_default(); // PEM, for the library that speaks TLS
    /// # Ok::<(), lock_core::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption), naming option and file, when a file cannot be read or has another content.
    pub fn read(&self) -> Result<TlsFiles, LockError> {
        const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
        let read_authority =
            |(authorities, file): &(Authorities, PathBuf)| read(authorities.option(), file, CERTIFICATE);
        let authority = self.authority.as_ref().map(read_authority).transpose()?;
        let client = match &self.client {
            Some((certificate, key)) => Some(ClientCertificate {
                certificate: read("cert", certificate, CERTIFICATE)?,
                key: read("key", key, "PRIVATE KEY-----")?,
            }),
            None => None,
        };
        Ok(TlsFiles { authority, client })
    }
}

impl Authorities {
    fn option(self) -> &'static str {
        match self {
            Self::OfFile => "ca",
            Self::OfFileAndSystem => "extra_ca",
        }
    }
}

fn read(option: &str, file: &Path, mark: &str) -> Result<Vec<u8>, LockError> {
    let shown = file.display();
    let content = std::fs::read(file).map_err(|error| {
        invalid(format!("the file {shown} of the option {option:?} cannot be read: {error}"))
            .remedy(format!("check the file that the option {option} names"))
            .caused_by(error)
    })?;
    if content.windows(mark.len()).any(|part| part == mark.as_bytes()) {
        return Ok(content);
    }
    let wanted = if option == "key" { "private key" } else { "certificate" };
    Err(invalid(format!("the file {shown} of the option {option:?} has no {wanted} in it"))
        .remedy(format!("check the file that the option {option} names: it has to be in PEM format")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::LockUrl;

    fn take_for(authorities: Authorities, query: &str) -> Result<Option<TlsOptions>, LockError> {
        let mut options = LockUrl::parse(&format!("server://db?{query}"))?.options();
        let mut tls = None;
        TlsOptions::visit_switched(&mut tls, &mut options, authorities)?;
        options.finish()?;
        Ok(tls)
    }

    fn take(query: &str) -> Result<Option<TlsOptions>, LockError> {
        take_for(Authorities::OfFile, query)
    }

    #[test]
    fn naming_a_file_turns_tls_on() {
        let authority = TlsOptions::new().authority("/ca.pem");
        for (query, expected) in [
            ("", None),
            ("tls=off", None),
            ("tls=on", Some(TlsOptions::new())),
            ("ca=/ca.pem", Some(authority.clone())),
            ("tls=on&ca=/ca.pem", Some(authority)),
            ("cert=/c.pem&key=/k.pem", Some(TlsOptions::new().client_certificate("/c.pem", "/k.pem"))),
        ] {
            assert_eq!(take(query).unwrap(), expected, "{query}");
        }
    }

    #[test]
    fn refuses_what_contradicts_itself() {
        for (query, part) in [
            ("tls=off&ca=/ca.pem", "tls=off"),
            ("tls=off&cert=/c.pem&key=/k.pem", "tls=off"),
            ("cert=/c.pem", "both"),
            ("key=/k.pem", "both"),
            ("tls=maybe", "on, off"),
        ] {
            let text = take(query).unwrap_err().to_string();
            assert!(text.contains(part), "{query}: {text}");
        }
    }

    #[test]
    fn what_is_trusted_besides_the_system_has_a_name_of_its_own() {
        let take = |query: &str| take_for(Authorities::OfFileAndSystem, query);
        let extra = TlsOptions::new().extra_authority("/ca.pem");
        assert_eq!(take("extra_ca=/ca.pem").unwrap(), Some(extra.clone()));
        let with_certificate = extra.client_certificate("/c.pem", "/k.pem");
        assert_eq!(take("extra_ca=/ca.pem&cert=/c.pem&key=/k.pem").unwrap(), Some(with_certificate));
        assert_eq!(take("tls=on").unwrap(), Some(TlsOptions::new()));
        for (query, part) in [("ca=/ca.pem", "extra_ca"), ("tls=off&extra_ca=/ca.pem", "tls=off")] {
            let text = take(query).unwrap_err().to_string();
            assert!(text.contains(part), "{query}: {text}");
        }
        assert!(self::take("extra_ca=/ca.pem").is_err());
    }

    #[test]
    fn a_program_cannot_ask_for_what_the_backend_does_not_promise() {
        let alone = TlsOptions::new().authority("/ca.pem");
        let visit = |authorities| {
            TlsOptions::visit(&mut Some(alone.clone()), &mut UrlOptions::default(), authorities)
        };
        visit(Authorities::OfFile).unwrap();
        let text = visit(Authorities::OfFileAndSystem).unwrap_err().to_string();
        assert!(text.contains("extra_ca"), "{text}");
    }

    #[test]
    fn an_error_about_a_file_names_option_file_and_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let certificate = write("c.pem", "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n");
        let key = write("k.pem", "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n");
        let missing = folder.path().join("missing.pem");
        let tls = TlsOptions::new();
        for (tls, option, file, what) in [
            (tls.clone().authority(&missing), "ca", &missing, "cannot be read"),
            (tls.clone().authority(&key), "ca", &key, "no certificate"),
            (tls.clone().extra_authority(&missing), "extra_ca", &missing, "cannot be read"),
            (tls.clone().extra_authority(&key), "extra_ca", &key, "no certificate"),
            (tls.clone().client_certificate(&missing, &key), "cert", &missing, "cannot be read"),
            (tls.clone().client_certificate(&key, &key), "cert", &key, "no certificate"),
            (tls.clone().client_certificate(&certificate, &missing), "key", &missing, "cannot be read"),
            (
                tls.clone().client_certificate(&certificate, &certificate),
                "key",
                &certificate,
                "no private key",
            ),
        ] {
            let error = tls.read().err().unwrap();
            let text = error.to_string();
            assert_eq!(error.kind(), lock_core::ErrorKind::InvalidOption);
            let remedy = format!("the option {option} names");
            for part in [&format!("{option:?}"), &*file.to_string_lossy(), what, &remedy] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        let files = tls.authority(&certificate).client_certificate(&certificate, &key).read().unwrap();
        assert_eq!(files.authority.unwrap(), std::fs::read(&certificate).unwrap());
        assert_eq!(files.client.unwrap().key, std::fs::read(&key).unwrap());
    }
}
