//! How a contender connects. The suite is not run here, so the harness needs nothing else.

use async_trait::async_trait;
use conformance_tests::{Ability, Failure, Harness, Outcome};
use lock_core::{ClientBuilder, ErrorKind, LockClient, LockError, Operation};

pub(crate) struct Connection;

#[async_trait]
impl Harness for Connection {
    async fn start() -> Outcome<Self> {
        Err(Failure::new("there is no suite here"))
    }

    fn lacks(&self, _: Ability) -> Option<&'static str> {
        Some("there is no suite here")
    }

    async fn client(&self, _: ClientBuilder) -> Result<LockClient, LockError> {
        Err(LockError::new(ErrorKind::Unsupported, Operation::Connect).because("there is no suite here"))
    }

    async fn leftovers(&self) -> Outcome<Vec<String>> {
        Ok(Vec::new())
    }

    async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError> {
        distlock::connect_with(address, builder).await
    }
}
