//! A system without a thread for the watcher. The only test in this program, because the limit applies to the whole process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // in tests only

use lock_core::memory::MemoryServer;
use lock_core::{ClientBuilder, ErrorKind};
use lock_file::FileOptions;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Enough for the stack of one thread, the client's own, but not for that of a second.
const ROOM: u64 = 3 << 20;

#[tokio::test]
async fn a_client_that_gets_no_watcher_is_an_error_with_a_remedy() {
    // Starts the threads that exist once for the whole process.
    let _client = MemoryServer::new().client().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = FileOptions::in_folder(folder.path().join("locks"));
    let before = getrlimit(Resource::As);
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let in_use = pages * u64::try_from(rustix::param::page_size()).unwrap();
    setrlimit(Resource::As, Rlimit { current: Some(in_use + ROOM), maximum: before.maximum }).unwrap();
    let refused = options.client(ClientBuilder::new());
    setrlimit(Resource::As, before).unwrap();
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server, "{error}");
    let text = error.to_string();
    assert!(text.contains("watcher") && text.contains("limits on threads"), "{text}");
    let client = options.client(ClientBuilder::new()).unwrap();
    client.mutex("a").unwrap().acquire().await.unwrap().release().await.unwrap();
}
