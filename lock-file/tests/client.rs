//! The backend behind a client of the core, in one process.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "also in what the tests share")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_core::{ClientBuilder, ErrorKind, LockClient, LossReason};
use lock_file::FileOptions;
use lock_kit::LockUrl;

struct Folder {
    _scratch: tempfile::TempDir,
    path: PathBuf,
}

impl Folder {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("locks");
        Self { _scratch: scratch, path }
    }

    fn client(&self) -> LockClient {
        let options = FileOptions { gate_patience: SOON, ..FileOptions::in_folder(&self.path) };
        options.client(ClientBuilder::new()).unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        files_in(&self.path)
    }
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_in(&path));
            if path.parent().unwrap().ends_with("queue") {
                files.push(path);
            }
        } else if path != folder.join("gate") || !folder.ends_with("locks") {
            files.push(path);
        }
    }
    files
}

/// Less time than a waiter takes to check without an event.
const SOON: Duration = Duration::from_secs(25);

#[tokio::test]
async fn excludes_and_hands_over() {
    let folder = Folder::new();
    let (ours, theirs) = (folder.client(), folder.client());
    let guard = ours.mutex("orders/42").unwrap().acquire().await.unwrap();
    let lock = theirs.mutex("orders/42").unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.try_acquire_for(Duration::from_millis(50)).await.unwrap().is_none());
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    while ours.status("orders/42").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    let token = guard.hold().token().unwrap();
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert!(guard.hold().token().unwrap() > token);
    guard.release().await.unwrap();
    ours.close(SOON).await.unwrap();
    theirs.close(SOON).await.unwrap();
    assert_eq!(folder.files(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_broken_holder_is_notified() {
    let folder = Folder::new();
    let (ours, theirs) = (folder.client(), folder.client());
    let guard = ours.mutex("a").unwrap().acquire().await.unwrap();
    let holder = theirs.status("a").await.unwrap().holders.remove(0);
    assert_eq!(holder.token, guard.hold().token());
    assert_eq!(holder.pid, Some(std::process::id()));
    theirs.break_holder("a", &holder.id).await.unwrap();
    let reason = tokio::time::timeout(SOON, guard.hold().lost()).await.unwrap();
    assert_eq!(reason, Some(LossReason::Broken));
    assert!(theirs.mutex("a").unwrap().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn unlock_and_reentry() {
    let folder = Folder::new();
    let lock = folder.client().mutex("a").unwrap();
    tokio::spawn(async move {
        lock.lock().await.unwrap();
        assert!(lock.try_lock().await.unwrap());
        lock.unlock().await.unwrap();
        lock.unlock().await.unwrap();
        assert_eq!(lock.unlock().await.unwrap_err().kind(), ErrorKind::NotOwner);
    })
    .await
    .unwrap();
    assert_eq!(folder.files(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_url_says_where_and_is_read_strictly() {
    let folder = Folder::new();
    let path = folder.path.display();
    let connect =
        async |text: String| lock_file::connect(&LockUrl::parse(&text).unwrap(), ClientBuilder::new()).await;
    let ours = connect(format!("file:{path}?label=me&poll_interval=50ms&gate_patience=1s")).await.unwrap();
    let theirs = connect(format!("file://{path}")).await.unwrap();
    let guard = ours.mutex("a").unwrap().acquire().await.unwrap();
    let status = theirs.status("a").await.unwrap();
    assert_eq!(status.holders[0].label.as_deref(), Some("me"));
    guard.release().await.unwrap();
    for (url, expected) in [
        (format!("file:{path}?pol_interval=1s"), "pol_interval"),
        (format!("file:{path}?poll_interval=soon"), "poll_interval"),
        (format!("file:{path}?poll_interval=0s"), "poll_interval"),
        (format!("file://elsewhere{path}"), "elsewhere"),
        ("file:locks".to_owned(), "absolute"),
    ] {
        let error = connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// Names that a file system would confuse, or that lead to other folders, are different locks.
#[tokio::test]
async fn all_names_are_different_locks() {
    let folder = Folder::new();
    let locks = folder.client();
    let long = "x".repeat(512);
    let names = [
        "a/b",
        "a_b",
        "A",
        "a",
        "../x",
        "..",
        ".",
        "🔒",
        "a~b",
        "held",
        "gate",
        "a b",
        "a\nb",
        &long,
        &long[..511],
    ];
    let mut guards = Vec::new();
    for name in names {
        guards.push(locks.mutex(name).unwrap().try_acquire().await.unwrap().expect(name));
        assert_eq!(locks.status(name).await.unwrap().name.as_str(), name);
    }
    assert_eq!(folder.files().len(), names.len());
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(folder.files(), Vec::<PathBuf>::new());
}
