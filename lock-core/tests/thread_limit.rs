//! Tests a system that cannot start threads. It is alone in this program, because the limit applies to the whole
//! process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "also outside #[test] functions")]

use std::future::Future;
use std::io::{Result, Write};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Waker};

use lock_core::{DistributedLock, ErrorKind, Hold, LockListener, LossReason};
use lock_memory::MemoryServer;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing_subscriber::util::SubscriberInitExt;

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

/// Uses a lock whenever there is no thread for listeners.
struct UsesALock(Arc<dyn DistributedLock>);

impl Write for UsesALock {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        if String::from_utf8_lossy(bytes).contains("no thread for listeners") {
            drop(pin!(self.0.acquire()).poll(&mut Context::from_waker(Waker::noop())));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

async fn events_wait_for_a_thread_and_the_log_says_so_while_it_may_use_locks() {
    let client = MemoryServer::new().client().unwrap();
    let lock = client.mutex("a").unwrap();
    let logs_to = Arc::clone(&lock);
    let subscriber = tracing_subscriber::fmt().with_writer(move || UsesALock(Arc::clone(&logs_to)));
    let _logs = subscriber.finish().set_default();
    let (sender, told) = std::sync::mpsc::channel();
    let listen = || client.add_listener(Arc::new(Acquisitions(sender.clone())));
    let early = with_room_for_no_thread(|| [listen(), listen()]);
    let late = listen();
    client.idle().await;
    // The log of the second failure has acquired it for the first listener.
    told.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    drop((early, late));
}

/// A listener that forwards acquisitions.
struct Acquisitions(Sender<()>);

impl LockListener for Acquisitions {
    fn on_abort(&self, _: &Hold, _: &LossReason) {}

    fn on_acquired(&self, _: &Hold) {
        let _ = self.0.send(());
    }
}

#[tokio::test]
async fn without_a_thread_for_it_a_client_is_an_error_and_events_wait() {
    events_wait_for_a_thread_and_the_log_says_so_while_it_may_use_locks().await;
    a_client_that_gets_no_thread_is_an_error_and_leaves_the_others_alone().await;
}

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
