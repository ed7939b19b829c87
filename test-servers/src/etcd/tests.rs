#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{Data, left_out};

fn is_left_out() -> bool {
    left_out("etcd").is_some()
}

#[tokio::test]
async fn a_server_keeps_its_keys_when_it_is_killed() {
    if is_left_out() {
        return;
    }
    let server = EtcdServer::start().await.unwrap();
    server.command(&["put", "locks/a/1", "x"]).await.unwrap();
    server.restart(Data::Kept).await.unwrap();
    assert_eq!(server.keys("locks/").await.unwrap(), ["locks/a/1"]);
    server.restart(Data::Lost).await.unwrap();
    assert_eq!(server.keys("locks/").await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_user_may_use_its_prefix_and_nothing_else() {
    if is_left_out() {
        return;
    }
    let options = ServerOptions::new().user("app", "secret", &["locks/"]).tls();
    let server = EtcdServer::start_with(options).await.unwrap();
    assert!(server.url("locks").starts_with("etcds://app:secret@127.0.0.1:"), "{}", server.url("locks"));
    let app = |words: &[&str]| {
        let words = [&["--user=app:secret"], words].concat();
        server.etcdctl(&words).output().unwrap().status.success()
    };
    assert!(app(&["put", "locks/a", "x"]) && !app(&["put", "others/a", "x"]));
    let keys = server.command(&["get", "--prefix", "--keys-only", ""]).await.unwrap();
    assert_eq!(keys.trim(), "locks/a");
}
