//! Tests a system that cannot start threads. It is alone in this program, because the limit applies to the whole
//! process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // also outside #[test] functions

use lock_core::ErrorKind;
use lock_memory::MemoryServer;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Less than the stack of a thread needs, and enough for everything else.
const ROOM: u64 = 1 << 20;

/// Waits until every other thread sleeps. A thread that starts still takes memory, an alternative stack and an arena,
/// and the standard library aborts the process where it gets none.
fn wait_until_other_threads_sleep() {
    while std::fs::read_dir("/proc/self/task").unwrap().any(|task| is_awake(&task.unwrap())) {
        std::thread::yield_now();
    }
}

fn is_awake(task: &std::fs::DirEntry) -> bool {
    let this_thread = std::fs::read_link("/proc/thread-self").unwrap();
    if this_thread.ends_with(task.file_name()) {
        return false;
    }
    // A thread that has ended in the meantime has no such file.
    let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('S'))
}

/// Limits the address space to what is in use and a little more. Unlike a limit on processes, this also applies to
/// root.
fn with_room_for_no_thread<T>(act: impl FnOnce() -> T) -> T {
    wait_until_other_threads_sleep();
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
