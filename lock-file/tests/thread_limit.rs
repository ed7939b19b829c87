//! A system without a thread for the watcher. The only test in this program, because the limit applies to the whole process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "in tests only")]

use lock_core::{ClientBuilder, ErrorKind};
use lock_file::FileOptions;
use lock_memory::MemoryServer;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Enough for the stack of one thread, the client's own, but not for that of a second.
const ROOM: u64 = 3 << 20;

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

#[tokio::test]
async fn a_client_that_gets_no_watcher_is_an_error_with_a_remedy() {
    // Starts the threads that exist once for the whole process.
    let _client = MemoryServer::new().client().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = FileOptions::in_folder(folder.path().join("locks"));
    wait_until_other_threads_sleep();
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
