//! Tests of scoped clients, and of the sign of life that a client asks its server for.

use std::time::Duration;

use lock_core::{ErrorKind, HolderId, LockError, Operation};
use lock_memory::MemoryServer;
use lock_memory::faults::{Fault, Gate};

#[tokio::test]
async fn scopes_add_up_and_errors_have_the_full_name() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let scoped = client.scoped("a/").scoped("b/");
    let lock = scoped.mutex("c").unwrap();
    assert_eq!(lock.name().as_str(), "a/b/c");
    let guard = lock.acquire().await.unwrap();
    assert!(client.mutex("a/b/c").unwrap().is_locked(), "one client, one lock");
    server.faults().sever();
    let refused = [
        scoped.mutex("d").unwrap().try_acquire().await.unwrap_err(),
        scoped.status("d").await.unwrap_err(),
        scoped.break_holder("d", &HolderId::new("1")).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.name().map(ToString::to_string).as_deref(), Some("a/b/d"), "{error}");
    }
    server.faults().heal();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_name_without_space_behind_its_prefix_is_refused_when_it_is_used() {
    let client = MemoryServer::new().client().unwrap();
    let scoped = client.scoped("x".repeat(511));
    scoped.mutex("y").unwrap();
    for name in ["", "yz"] {
        let error = scoped.mutex(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    }
    let error = scoped.mutex("yz").unwrap_err().to_string();
    assert!(error.contains("with the prefix of its scope it has 513 bytes"), "{error}");
    assert_eq!(client.scoped("").mutex("y").unwrap().name().as_str(), "y");
}

#[tokio::test]
async fn closing_a_scoped_client_closes_all() {
    let client = MemoryServer::new().client().unwrap();
    client.scoped("a/").close(Duration::from_secs(30)).await.unwrap();
    assert_eq!(client.mutex("orders/42").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(client.ping().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn a_ping_says_what_the_server_says() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    client.ping().await.unwrap();
    server.faults().sever();
    let error = client.ping().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot ping memory:: the backend cannot be reached: the connection to the memory server is cut"
    );
    server.faults().heal();
    let denied = LockError::new(ErrorKind::Denied, Operation::Connect).because("on purpose");
    server.faults().inject(Operation::Ping, Fault::Fail(denied));
    server.faults().inject(Operation::Ping, Fault::Panic);
    for kind in [ErrorKind::Denied, ErrorKind::Internal] {
        let error = client.ping().await.unwrap_err();
        assert_eq!((error.kind(), error.operation()), (kind, Operation::Ping), "{error}");
    }
    client.ping().await.unwrap();
}

#[tokio::test]
async fn a_ping_that_is_dropped_changes_nothing() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let gate = Gate::new();
    server.faults().inject(Operation::Ping, Fault::Delay(gate.clone()));
    tokio::select! {
        biased;
        answered = client.ping() => panic!("the gate is closed: {answered:?}"),
        () = gate.reached() => {}
    }
    client.ping().await.unwrap();
}
