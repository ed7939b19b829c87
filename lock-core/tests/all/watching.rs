//! Watches of all locks.

use std::time::Duration;

use lock_core::{ErrorKind, LockError};
use lock_memory::MemoryServer;

#[tokio::test]
async fn trouble_ends_a_wait_when_it_begins_and_when_it_ends() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let mut watch = client.watch(Duration::ZERO);
    let _guard = client.mutex("a").unwrap().acquire().await.unwrap();
    assert_eq!(watch.changes().await.unwrap().len(), 1);
    server.faults().sever();
    assert_eq!(watch.changes().await.unwrap(), []);
    assert_eq!(watch.trouble().map(LockError::kind), Some(ErrorKind::Unreachable));
    assert_eq!(watch.locks().len(), 1);
    server.faults().heal();
    assert_eq!(watch.changes().await.unwrap(), []);
    assert!(watch.trouble().is_none() && watch.locks().len() == 1);
}
