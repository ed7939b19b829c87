//! A certificate authority for tests, with a certificate for a server and one for a client.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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

/// The files of an authority that exists only for one test. Its certificates are valid for `localhost` and `127.0.0.1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificates {
    /// The certificate of the authority.
    pub authority: PathBuf,
    /// The certificate of the server.
    pub server: Pair,
    /// The certificate of a client.
    pub client: Pair,
}

impl Certificates {
    /// Creates new files in `folder`.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn make_in(folder: &Path) -> Outcome<Self> {
        let key = KeyPair::generate().map_err(failure)?;
        let mut authority = params("the authority of a test", &[])?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = authority.self_signed(&key).map_err(failure)?;
        let path = folder.join("ca.pem");
        fs::write(&path, certificate.pem()).during(path.display())?;
        let issuer = Issuer::new(authority, key);
        let names = ["localhost", "127.0.0.1"];
        let server = signed(folder, "server", &names, ExtendedKeyUsagePurpose::ServerAuth, &issuer)?;
        let client = signed(folder, "client", &[], ExtendedKeyUsagePurpose::ClientAuth, &issuer)?;
        Ok(Self { authority: path, server, client })
    }
}

fn params(name: &str, hosts: &[&str]) -> Outcome<CertificateParams> {
    let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
    let mut params = CertificateParams::new(hosts).map_err(failure)?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

fn signed(
    folder: &Path,
    name: &str,
    hosts: &[&str],
    purpose: ExtendedKeyUsagePurpose,
    issuer: &Issuer<'_, KeyPair>,
) -> Outcome<Pair> {
    let key = KeyPair::generate().map_err(failure)?;
    let mut params = params(name, hosts)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    let certificate = params.signed_by(&key, issuer).map_err(failure)?;
    let pair =
        Pair { certificate: folder.join(format!("{name}.pem")), key: folder.join(format!("{name}.key")) };
    fs::write(&pair.certificate, certificate.pem()).during(pair.certificate.display())?;
    let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(&pair.key)?;
    file.write_all(key.serialize_pem().as_bytes()).during(pair.key.display())?;
    Ok(pair)
}

#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failure(error: rcgen::Error) -> Failure {
    Failure::new(format!("a certificate cannot be made: {error}"))
}
