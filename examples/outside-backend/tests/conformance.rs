//! The conformance suite against the shelf.

use std::sync::Arc;

use async_trait::async_trait;
use conformance_tests::{Ability, Harness, Outcome, conformance_suite};
use lock_core::{ClientBuilder, LockClient, LockError, LockName};
use lock_shelf::Shelf;

struct Place(Arc<Shelf>);

#[async_trait]
impl Harness for Place {
    async fn start() -> Outcome<Self> {
        Ok(Self(Arc::default()))
    }

    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        Some(match ability {
            Ability::SeparateProcesses => "the shelf is in the memory of one process",
            _ => "no network and no operator can come between the shelf and its clients",
        })
    }

    async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.0.client(builder)
    }

    async fn leftovers(&self) -> Outcome<Vec<String>> {
        Ok(self.0.in_use())
    }

    /// The backend does not show who waits, but the shelf knows.
    async fn waiting_for(&self, _: &LockClient, name: &LockName) -> Outcome<usize> {
        Ok(self.0.waiting(name.as_str()))
    }
}

conformance_suite!(Place);
