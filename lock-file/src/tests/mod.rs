//! The protocol between real processes.
//!
//! The processes run this test program again: [`process::helper_process`] obeys the lines that it reads.

mod attempts;
mod deaths;
mod process;
mod refusals;
mod scale;
mod sharing;
mod sharing_traps;
mod traps;
mod wakers;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lock_core::{ClientBuilder, LockClient, LockStatus, LossReason};

use crate::FileOptions;
use crate::subject::FOLDERS;

/// Longer than any step of these tests takes on a busy machine, and shorter than the watcher's own inspection, which would hide
/// a missing event.
const SOON: Duration = Duration::from_secs(60);

struct Scratch {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Scratch {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks");
        Self { _directory: directory, path }
    }

    fn client(&self) -> LockClient {
        client_in(&self.path)
    }

    /// Waits until all files in the folder but the gate have been cleaned away.
    #[track_caller]
    fn is_empty_soon(&self) {
        eventually("nothing is left in the folder", || self.leftovers().is_empty());
    }

    /// The files in the folder, without the gate. Clients keep empty folders.
    fn leftovers(&self) -> Vec<PathBuf> {
        self.entries()
            .into_iter()
            .flat_map(|path| if path.is_dir() { inside(&path) } else { vec![path] })
            .collect()
    }

    /// The folders that clients keep for locks and semaphores, and the files of those who hold alone.
    fn entries(&self) -> Vec<PathBuf> {
        FOLDERS.into_iter().flat_map(|name| inside(&self.path.join(name))).collect()
    }
}

/// What is in a folder; nothing if it has been removed.
fn inside(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn client_in(folder: &Path) -> LockClient {
    patient(folder).client(ClientBuilder::new()).unwrap()
}

/// Options of a client that does not give up when another process is slow in the gate.
fn patient(folder: &Path) -> FileOptions {
    FileOptions { gate_patience: SOON, ..FileOptions::in_folder(folder) }
}

/// Copies a program that is run afterwards. A child does it: as long as a process has the file open to write, no other can run it,
/// and each one that a test starts has the open files of all tests for a moment.
fn copy_program(from: impl AsRef<OsStr>, to: &Path) {
    let copied = std::process::Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// Waits for a condition that sends no event.
#[track_caller]
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < SOON, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Waits until the client learns of a break by another client. What happened before, it has learned then, too.
fn learns_of_a_break(client: &LockClient, other: &LockClient) {
    let guard = block_on(client.mutex("bell").unwrap().acquire()).unwrap();
    // Long enough held to be watched.
    std::thread::sleep(Duration::from_millis(60));
    block_on(other.break_holder("bell", &guard.hold().id())).unwrap();
    let reason = block_on(async { tokio::time::timeout(SOON, guard.hold().lost()).await });
    assert_eq!(reason.ok(), Some(Some(LossReason::Broken)));
}

fn status(client: &LockClient, name: &str) -> LockStatus {
    block_on(client.status(name)).unwrap()
}

fn pids_of_waiters(client: &LockClient, name: &str) -> Vec<u32> {
    status(client, name).waiters.iter().map(|waiter| waiter.pid.unwrap()).collect()
}

fn pid_of_holder(client: &LockClient, name: &str) -> Option<u32> {
    status(client, name).holders.first().map(|holder| holder.pid.unwrap())
}

/// Removes a folder that a client may write to meanwhile.
fn remove_folder(path: &Path) {
    let removed = || match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => false,
        removed => removed.map(|()| true).unwrap(),
    };
    assert!((0..100).any(|_| removed()), "{} is written to all the time", path.display());
}
