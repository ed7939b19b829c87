//! The harness of the memory backend.
#![allow(dead_code)] // each program uses one of the two

use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{Ability, During, Failure, Harness, Outcome, Removal};
use lock_core::memory::faults::Fault;
use lock_core::memory::{Loss, MemoryOptions, MemoryServer, Told};
use lock_core::{ClientBuilder, LockClient, LockError, LockName, Operation};

/// Long enough for a busy machine to renew in time, short enough to wait for its end.
const LEASE: Duration = Duration::from_secs(3);

/// A server whose clients have no lease.
pub(crate) struct WithoutLease(MemoryServer);

/// A server whose clients have a lease.
pub(crate) struct WithLease(MemoryServer);

#[async_trait]
impl Harness for WithoutLease {
    async fn start() -> Outcome<Self> {
        Ok(Self(MemoryServer::new()))
    }

    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        lacks(ability)
    }

    async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.0.client_with(MemoryOptions::new(), builder)
    }

    async fn leftovers(&self) -> Outcome<Vec<String>> {
        Ok(leftovers(&self.0))
    }

    async fn sever(&self) -> Outcome {
        self.0.faults().sever();
        Ok(())
    }

    async fn heal(&self) -> Outcome {
        self.0.faults().heal();
        Ok(())
    }

    async fn lose_reply(&self, operation: Operation) -> Outcome {
        self.0.faults().inject(operation, Fault::DropReply);
        Ok(())
    }

    async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
        take_away(&self.0, name, removal, Told::AtOnce)
    }
}

#[async_trait]
impl Harness for WithLease {
    async fn start() -> Outcome<Self> {
        Ok(Self(MemoryServer::new()))
    }

    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        lacks(ability)
    }

    fn lease(&self) -> Option<Duration> {
        Some(LEASE)
    }

    async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        self.0.client_with(MemoryOptions::new().lease(LEASE), builder)
    }

    async fn leftovers(&self) -> Outcome<Vec<String>> {
        Ok(leftovers(&self.0))
    }

    async fn sever(&self) -> Outcome {
        self.0.faults().sever();
        Ok(())
    }

    async fn heal(&self) -> Outcome {
        self.0.faults().heal();
        Ok(())
    }

    async fn lose_reply(&self, operation: Operation) -> Outcome {
        self.0.faults().inject(operation, Fault::DropReply);
        Ok(())
    }

    async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
        take_away(&self.0, name, removal, Told::WhenAsked)
    }
}

fn lacks(ability: Ability) -> Option<&'static str> {
    match ability {
        Ability::SeparateProcesses => Some("the server lives in the memory of one process"),
        _ => None,
    }
}

fn leftovers(server: &MemoryServer) -> Vec<String> {
    (0..server.len()).map(|number| format!("lock {number} of the server")).collect()
}

fn take_away(server: &MemoryServer, name: &LockName, removal: Removal, told: Told) -> Outcome {
    let loss = match removal {
        Removal::Deletion => Loss::Delete,
        Removal::Expiry => Loss::Expire,
        Removal::Theft => Loss::Steal,
    };
    match server.lose(name, loss, told) {
        true => Ok(()),
        false => Err(Failure::new("nobody holds it")).during(name),
    }
}
