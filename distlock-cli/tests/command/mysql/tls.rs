//! Which authorities a client trusts.

use test_servers::{Certificates, MySqlFlavour, ServerOptions};

use super::server::{Server, Tokens};
use crate::support::{assert_code, said, status_where_the_system_trusts};

/// The client crate knows no other way to trust one authority alone than to replace the system's.
#[test]
fn the_systems_authorities_are_trusted_with_and_without_a_ca() {
    let flavour = MySqlFlavour::MariaDb;
    let options = ServerOptions::new().flavour(flavour).tls().user("app", "right", &[]);
    let Some(server) = Server::start_with(flavour, Tokens::Minted, options) else { return };
    let folder = tempfile::tempdir().unwrap();
    let other = Certificates::make_in(folder.path()).unwrap().authority;
    let known = &server.certificates().authority;
    let url = server.url().split_once('?').unwrap().0.to_owned();
    for (system, ca, is_trusted) in
        [(known, None, true), (known, Some(&other), true), (&other, None, false), (&other, Some(known), true)]
    {
        let option = ca.map_or_else(|| "tls=on".to_owned(), |file| format!("extra_ca={}", file.display()));
        let output = status_where_the_system_trusts(system, &format!("{url}?{option}"));
        assert_code(&output, if is_trusted { 0 } else { 77 }, (system, &option));
        assert!(is_trusted || said(&output).contains("TLS failed"), "{output:?}");
    }
}
