//! Connecting: again while the server is not there, and at the first use.

#![allow(clippy::unwrap_used, reason = "also in shared functions of the tests")]

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use lock_core::{ClientBuilder, ConnectMode, ErrorKind, LockClient, LockError, Operation};
use lock_kit::connect_backend;
use lock_memory::{MemoryOptions, MemoryServer};

/// Connects to a memory server; the first attempts fail.
struct Connecting {
    server: MemoryServer,
    attempts: Arc<AtomicUsize>,
    failures: usize,
    failure: LockError,
}

impl Connecting {
    fn failing(failures: usize, kind: ErrorKind) -> Self {
        let failure = LockError::new(kind, Operation::Connect).because("refused");
        let failure = if kind == ErrorKind::Unreachable { failure.retryable() } else { failure };
        Self { server: MemoryServer::new(), attempts: Arc::default(), failures, failure }
    }

    async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        let capabilities = self.server.client()?.capabilities().clone();
        let (server, attempts) = (self.server.clone(), Arc::clone(&self.attempts));
        let (failures, failure) = (self.failures, self.failure.clone());
        let make = move |context| {
            let is_failing = attempts.fetch_add(1, Ordering::SeqCst) < failures;
            let (server, failure) = (server.clone(), failure.clone());
            async move {
                tokio::task::yield_now().await;
                if is_failing { Err(failure) } else { server.backend(MemoryOptions::new(), context) }
            }
        };
        connect_backend(builder, capabilities, make).await
    }

    fn attempts(&self) -> usize {
        self.attempts.load(Ordering::SeqCst)
    }
}

fn lazy() -> ClientBuilder {
    ClientBuilder::new().connect_mode(ConnectMode::Lazy)
}

#[tokio::test]
async fn a_server_that_is_not_there_yet_is_waited_for() {
    let connecting = Connecting::failing(3, ErrorKind::Unreachable);
    connecting.client(ClientBuilder::new()).await.unwrap().ping().await.unwrap();
    assert_eq!(connecting.attempts(), 4);
    let refused = Connecting::failing(3, ErrorKind::Denied);
    assert_eq!(refused.client(ClientBuilder::new()).await.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(refused.attempts(), 1);
}

#[tokio::test]
async fn a_lazy_client_connects_once_when_it_is_first_used() {
    let connecting = Connecting::failing(2, ErrorKind::Unreachable);
    let client = connecting.client(lazy()).await.unwrap();
    let (one, other) = (client.mutex("one").unwrap(), client.mutex("other").unwrap());
    assert_eq!((client.capabilities().backend, connecting.attempts()), ("memory", 0));
    let (one, other, ping) = tokio::join!(one.acquire(), other.acquire(), client.ping());
    assert_eq!(connecting.attempts(), 3);
    ping.unwrap();
    assert!(one.unwrap().token() != other.unwrap().token());
    client.close(Duration::from_secs(30)).await.unwrap();
    assert!(connecting.server.is_empty());
}

#[tokio::test]
async fn a_lazy_client_lists_at_its_first_use() {
    let connecting = Connecting::failing(1, ErrorKind::Unreachable);
    let client = connecting.client(lazy()).await.unwrap();
    assert!(client.list().await.unwrap().locks.is_empty());
    let guard = client.mutex("orders/42").unwrap().acquire().await.unwrap();
    assert_eq!(client.list().await.unwrap().locks.len(), 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lazy_client_says_at_each_use_why_it_cannot_connect() {
    let connecting = Connecting::failing(1, ErrorKind::Denied);
    let client = connecting.client(lazy().server("test://cache")).await.unwrap();
    let error = client.mutex("orders/42").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot acquire lock \"orders/42\" at test://cache: access was refused: refused"
    );
    client.ping().await.unwrap();
    assert_eq!(connecting.attempts(), 2);
}

#[tokio::test]
async fn a_first_use_that_is_dropped_leaves_the_connection_to_the_next() {
    let connecting = Connecting::failing(2, ErrorKind::Unreachable);
    let client = connecting.client(lazy()).await.unwrap();
    let lock = client.mutex("orders/42").unwrap();
    let mut acquiring = Box::pin(lock.acquire());
    poll_fn(|context| {
        assert!(acquiring.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    drop(acquiring);
    lock.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(connecting.attempts(), 3);
}

#[tokio::test]
async fn a_lazy_client_that_is_closed_does_not_connect() {
    let connecting = Connecting::failing(0, ErrorKind::Unreachable);
    let client = connecting.client(lazy()).await.unwrap();
    client.close(Duration::from_secs(30)).await.unwrap();
    assert_eq!(client.ping().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(client.status("orders/42").await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(connecting.attempts(), 0);
}
