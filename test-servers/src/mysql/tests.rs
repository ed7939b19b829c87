//! Tests of the fixture itself.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::Data;

async fn each(check: impl AsyncFn(MySqlFlavour)) {
    for flavour in MySqlFlavour::ALL {
        match flavour.left_out() {
            Some(reason) => println!("{flavour:?}: {reason}"),
            None => check(flavour).await,
        }
    }
}

#[tokio::test]
async fn a_server_answers_is_restarted_and_ends_with_its_handle() {
    each(async |flavour| {
        let server = MySqlServer::start_with(ServerOptions::new().flavour(flavour)).await.unwrap();
        let version = server.value("SELECT VERSION()").await.unwrap().unwrap();
        assert_eq!(version.contains("MariaDB"), flavour == MySqlFlavour::MariaDb, "{version}");
        assert_eq!(server.value("SELECT NULL").await.unwrap(), None);
        let failure = server.query("SELECT * FROM nowhere.nothing").await.unwrap_err().to_string();
        assert!(failure.contains("nowhere"), "{failure}");
        let first = server.pid();
        server.restart(Data::Kept).await.unwrap();
        assert_ne!(server.pid(), first);
        server.stop().unwrap();
        server.resume().unwrap();
        assert_eq!(server.value("SELECT 'again'").await.unwrap().as_deref(), Some("again"));
        let folder = server.place.folder.path().to_owned();
        drop(server);
        assert!(!folder.exists());
    })
    .await;
}

#[tokio::test]
async fn root_is_let_in_through_the_socket_alone() {
    each(async |flavour| {
        let server = MySqlServer::start_with(ServerOptions::new().flavour(flavour)).await.unwrap();
        let hosts = server.query("SELECT host FROM mysql.user WHERE user = 'root'").await.unwrap();
        assert_eq!(hosts, [[Some("localhost".to_owned())]]);
    })
    .await;
}
