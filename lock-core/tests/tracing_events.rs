//! What the core tells `tracing`: the lock's name, how long it was waited for, how long it was held.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // also in what the tests have in common

mod support;

use std::io::{Result, Write};
use std::sync::{Arc, Mutex};

use lock_core::DistributedLockExt;
use lock_core::memory::{Loss, MemoryServer, Told};
use support::{eventually, name};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Lines {
    /// Whether there is a line with all these parts.
    fn have(&self, parts: &[&str]) -> bool {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().any(|line| parts.iter().all(|part| line.contains(part)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_have_the_locks_name_its_wait_time_and_its_hold_time() {
    let lines = Lines::default();
    tracing_subscriber::fmt()
        .with_writer(lines.clone())
        .with_ansi(false)
        .with_max_level(tracing::Level::DEBUG)
        .init();
    let server = MemoryServer::new();
    let lock = server.client().unwrap().lock("orders/42").unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    assert!(lines.have(&["DEBUG", "acquired", "lock=orders/42", "waited=", "token="]));
    assert!(lines.have(&["DEBUG", "released", "lock=orders/42", "held="]));

    let guard = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    server.lose(&name("orders/42"), Loss::Delete, Told::AtOnce);
    eventually("the loss is logged", || {
        lines.have(&["WARN", "lost", "lock=orders/42", "reason=what stood for it was deleted", "held="])
    })
    .await;
    drop(guard);
}
