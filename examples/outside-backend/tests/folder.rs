//! The conformance suite against locks in a folder, with processes that are killed and stopped.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{Ability, Harness, Outcome, conformance_suite};
use lock_core::{ClientBuilder, LockClient, LockError};
use lock_register::RegisterOptions;
use lock_shelf::folder;
use tempfile::TempDir;

/// Long enough for a busy machine to renew in time, short enough to wait for its end.
const LEASE: Duration = Duration::from_secs(5);

struct Place(TempDir);

#[async_trait]
impl Harness for Place {
    async fn start() -> Outcome<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::SeparateProcesses => None,
            Ability::SeenDeaths => Some("the lock of a dead client is kept until its lease ends"),
            _ => Some("no network and no operator comes between a folder and its clients"),
        }
    }

    async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        connect(self.0.path(), builder)
    }

    fn lease(&self) -> Option<Duration> {
        Some(LEASE)
    }

    fn address(&self) -> Option<String> {
        self.0.path().to_str().map(str::to_owned)
    }

    async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError> {
        connect(Path::new(address), builder)
    }

    fn rounds(&self, many: u32) -> u32 {
        many / 8
    }

    /// Objects stay; what counts are holders and waiters.
    async fn leftovers(&self) -> Outcome<Vec<String>> {
        let mut left = Vec::new();
        for entry in std::fs::read_dir(self.0.path())? {
            let path = entry?.path();
            let is_object = path.extension().is_some_and(|kind| kind == "lock" || kind == "semaphore");
            let is_free = |text: String| text.contains(r#""holders":[]"#) && text.contains(r#""queue":[]"#);
            if is_object && !is_free(std::fs::read_to_string(&path)?) {
                left.push(path.display().to_string());
            }
        }
        Ok(left)
    }
}

fn connect(folder: &Path, builder: ClientBuilder) -> Result<LockClient, LockError> {
    let options = RegisterOptions { lease: LEASE, poll: Duration::from_millis(20) };
    folder::client(folder, options, builder)
}

conformance_suite!(Place);
