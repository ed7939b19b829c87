//! Tests a system that cannot start threads. It is alone in this program, because the limit applies to the whole
//! process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // also outside #[test] functions

use lock_core::ErrorKind;
use lock_core::memory::MemoryServer;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Less than the stack of a thread needs, and enough for everything else.
const ROOM: u64 = 1 << 20;

/// Limits the address space to what is in use and a little more. Unlike a limit on processes, this also applies to
/// root.
fn with_room_for_no_thread<T>(act: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::As);
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let in_use = pages * u64::try_from(rustix::param::page_size()).unwrap();
    setrlimit(Resource::As, Rlimit { current: Some(in_use + ROOM), maximum: before.maximum }).unwrap();
    let result = act();
    setrlimit(Resource::As, before).unwrap();
    result
}

#[tokio::test]
async fn a_client_that_gets_no_thread_is_an_error_and_leaves_the_others_alone() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let error = with_room_for_no_thread(|| {
        // The stacks of threads that have ended are reused.
        let mut clients = Vec::new();
        loop {
            match server.client() {
                Ok(client) => clients.push(client),
                Err(error) => return error,
            }
        }
    });
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Internal, lock_core::Operation::Connect));
    let text = error.to_string();
    assert!(text.contains("no thread for the client") && text.contains("limits on threads"), "{text}");
    assert!(text.contains("os error") && error.underlying().is_some(), "{text}");
    client.mutex("a").unwrap().acquire().await.unwrap().release().await.unwrap();
    drop(server.client().unwrap());
}
