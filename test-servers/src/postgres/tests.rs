//! Tests of the fixture itself.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use super::*;
use crate::process::is_running;

#[tokio::test]
async fn a_server_answers_is_restarted_and_ends_with_its_handle() {
    if let Some(reason) = crate::left_out("postgres") {
        return println!("{reason}");
    }
    let server = PostgresServer::start().await.unwrap();
    let version = server.value("SHOW server_version_num").await.unwrap().unwrap();
    assert!(version.parse::<u32>().unwrap() >= 140_000, "{version}");
    assert_eq!(server.value("SELECT NULL").await.unwrap(), None);
    assert_eq!(server.query("SELECT 1, NULL; SELECT 'two'").await.unwrap().len(), 2);
    let failure = server.query("SELECT * FROM nowhere").await.unwrap_err().to_string();
    assert!(failure.contains("42P01") && failure.contains("nowhere"), "{failure}");
    let first = server.pid();
    server.restart(Data::Kept).await.unwrap();
    assert_ne!(server.pid(), first);
    server.stop().unwrap();
    let mut asked = Box::pin(server.query("SELECT 1"));
    tokio::time::timeout(Duration::from_millis(300), &mut asked).await.unwrap_err();
    server.resume().unwrap();
    assert_eq!(asked.await.unwrap().len(), 1);
    let (folder, others) = (server.place.folder.path().to_owned(), server.process.others());
    assert!(!others.is_empty());
    drop(server);
    assert!(!folder.exists());
    assert!(!others.into_iter().any(is_running));
}

#[tokio::test]
async fn a_standby_answers_and_becomes_a_primary() {
    if let Some(reason) = crate::left_out("postgres") {
        return println!("{reason}");
    }
    let server = PostgresServer::start().await.unwrap();
    let standby = "SELECT pg_is_in_recovery()::text";
    server.restart_as_standby().await.unwrap();
    assert_eq!(server.value(standby).await.unwrap().as_deref(), Some("true"));
    server.promote().await.unwrap();
    assert_eq!(server.value(standby).await.unwrap().as_deref(), Some("false"));
}
