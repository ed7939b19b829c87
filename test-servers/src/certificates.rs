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

/// What an authority has signed, in PEM format: its own certificate, and those of the server and of the client with their keys.
struct Signed {
    authority: String,
    server: [String; 2],
    client: [String; 2],
}

/// The servers of a program have one authority: to make it takes longer than all else that the start of some takes here.
static OF_THIS_PROGRAM: LazyLock<Result<Signed, rcgen::Error>> = LazyLock::new(Signed::new);

impl Certificates {
    /// Creates new files in `folder`, of an authority that signs nothing else.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn make_in(folder: &Path) -> Outcome<Self> {
        Signed::new().as_ref().map_err(failure)?.write_in(folder)
    }

    /// Creates the files in `folder` that all servers of this program have.
    pub(crate) fn shared_in(folder: &Path) -> Outcome<Self> {
        OF_THIS_PROGRAM.as_ref().map_err(failure)?.write_in(folder)
    }
}

impl Signed {
    fn new() -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut authority = params("the authority of a test", &[])?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = authority.self_signed(&key)?.pem();
        let issuer = Issuer::new(authority, key);
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let server = signed("server", &names, ExtendedKeyUsagePurpose::ServerAuth, &issuer)?;
        let client = signed("client", &[], ExtendedKeyUsagePurpose::ClientAuth, &issuer)?;
        Ok(Self { authority: certificate, server, client })
    }

    fn write_in(&self, folder: &Path) -> Outcome<Certificates> {
        let file = |name: &str, mode: u32, text: &str| {
            let path = folder.join(name);
            let file = File::options().create(true).truncate(true).write(true).mode(mode).open(&path);
            file.and_then(|mut file| file.write_all(text.as_bytes())).during(path.display())?;
            Outcome::Ok(path)
        };
        let pair = |name: &str, [certificate, key]: &[String; 2]| {
            let certificate = file(&format!("{name}.pem"), 0o644, certificate)?;
            Outcome::Ok(Pair { certificate, key: file(&format!("{name}.key"), 0o600, key)? })
        };
        let authority = file("ca.pem", 0o644, &self.authority)?;
        Ok(Certificates {
            authority,
            server: pair("server", &self.server)?,
            client: pair("client", &self.client)?,
        })
    }
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

fn failure(error: &rcgen::Error) -> Failure {
    Failure::new(format!("a certificate cannot be made: {error}"))
}
