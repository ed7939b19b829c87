//! Which authorities a client trusts.

use test_servers::{Certificates, ServerOptions};

use super::server::Server;
use crate::support::{assert_code, said, status_where_the_system_trusts};

#[test]
fn a_ca_is_trusted_alone_and_the_systems_authorities_only_without_one() {
    let Some(server) = Server::start_with(ServerOptions::new().tls()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let other = Certificates::make_in(folder.path()).unwrap().authority;
    let known = &server.certificates().authority;
    let url = server.url().split_once('?').unwrap().0.to_owned();
    for (system, ca, is_trusted) in [
        (known, None, true),
        (known, Some(&other), false),
        (&other, None, false),
        (&other, Some(known), true),
    ] {
        let ca = ca.map_or_else(String::new, |file| format!("?ca={}", file.display()));
        let output = status_where_the_system_trusts(system, &format!("{url}{ca}"));
        assert_code(&output, if is_trusted { 0 } else { 69 }, (system, &ca));
        assert!(is_trusted || said(&output).contains("certificate"), "{output:?}");
    }
}
