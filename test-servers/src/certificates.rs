//! A certificate authority for tests, with a certificate for a server and one for a client.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::{During, Failure, Outcome};

/// A certificate and its key, as files in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key, which only its owner can read.
    pub key: PathBuf,
}

/// The files of an authority that exists only for the tests of one program. Its certificates are valid for `localhost` and `127.0.0.1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificates {
    /// The certificate of the authority.
    pub authority: PathBuf,
    /// The certificate of the server.
    pub server: Pair,
    /// The certificate of a client.
    pub client: Pair,
}

/// The files of an authority, which has signed the others: their names and contents.
type Signed = [(&'static str, String); 5];

/// The servers of a program have one authority: to make it takes longer than all else that the start of some takes here.
static OF_THIS_PROGRAM: LazyLock<Result<Signed, rcgen::Error>> = LazyLock::new(sign);

impl Certificates {
    /// Creates new files in `folder`, of an authority that signs nothing else.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn make_in(folder: &Path) -> Outcome<Self> {
        Self::write_in(folder, &sign())
    }

    /// Creates the files in `folder` that all servers of this program have.
    pub(crate) fn shared_in(folder: &Path) -> Outcome<Self> {
        Self::write_in(folder, &OF_THIS_PROGRAM)
    }

    fn write_in(folder: &Path, signed: &Result<Signed, rcgen::Error>) -> Outcome<Self> {
        let failure = |error| Failure::new(format!("a certificate cannot be made: {error}"));
        for (name, text) in signed.as_ref().map_err(failure)? {
            let (path, mode) = (folder.join(name), if text.contains("PRIVATE KEY") { 0o600 } else { 0o644 });
            let file = File::options().create(true).truncate(true).write(true).mode(mode).open(&path);
            file.and_then(|mut file| file.write_all(text.as_bytes())).during(path.display())?;
        }
        let file = |name| folder.join(name);
        Ok(Self {
            authority: file("ca.pem"),
            server: Pair { certificate: file("server.pem"), key: file("server.key") },
            client: Pair { certificate: file("client.pem"), key: file("client.key") },
        })
    }
}

fn sign() -> Result<Signed, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut authority = params("the authority of a test", &[])?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = authority.self_signed(&key)?.pem();
    let issuer = Issuer::new(authority, key);
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let [server, its_key] = signed("server", &names, ExtendedKeyUsagePurpose::ServerAuth, &issuer)?;
    let [client, key] = signed("client", &[], ExtendedKeyUsagePurpose::ClientAuth, &issuer)?;
    Ok([
        ("ca.pem", certificate),
        ("server.pem", server),
        ("server.key", its_key),
        ("client.pem", client),
        ("client.key", key),
    ])
}

fn params(name: &str, hosts: &[String]) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

fn signed(
    name: &str,
    hosts: &[String],
    purpose: ExtendedKeyUsagePurpose,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<[String; 2], rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = params(name, hosts)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    Ok([params.signed_by(&key, issuer)?.pem(), key.serialize_pem()])
}
