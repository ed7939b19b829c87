//! The harness of the memory backend, which `docs/backends/writing-one.md` explains.
#![allow(dead_code, reason = "each program uses only one of the two")]

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{Ability, Failure, Harness, Losing, Outcome, Removal};
use lock_core::{ClientBuilder, EngineChoice, LockClient, LockError, LockName, Operation};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{Loss, MemoryOptions, MemoryServer, Replies, Told};

/// Long enough for a busy machine to renew in time, short enough to wait for its end.
const LEASE: Duration = Duration::from_secs(6);

/// Outlasts every case.
const LASTING: Duration = Duration::from_secs(600);

/// A server whose clients have no lease: it reports a loss immediately.
pub(crate) struct WithoutLease(Fixture);

/// A server whose clients have a lease, and which never replies immediately, like one on a network: its clients notice
/// a loss when they renew.
pub(crate) struct WithLease(Fixture);

struct Fixture {
    server: MemoryServer,
    lease: Option<Duration>,
    gate: Mutex<Gate>,
}

impl Fixture {
    fn new(lease: Option<Duration>) -> Self {
        Self { server: MemoryServer::new(), lease, gate: Mutex::default() }
    }

    fn options(&self, lease: Duration) -> MemoryOptions {
        match self.lease {
            Some(_) => MemoryOptions::new().lease(lease).replies(Replies::Later),
            None => MemoryOptions::new(),
        }
    }

    fn leftovers(&self) -> Vec<String> {
        (0..self.server.len()).map(|number| format!("lock {number} of the server")).collect()
    }

    fn gate(&self) -> Gate {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn hold_reply(&self, operation: Operation) {
        let gate = Gate::new();
        *self.gate.lock().unwrap_or_else(PoisonError::into_inner) = gate.clone();
        self.server.faults().inject(operation, Fault::DelayReply(gate));
    }

    fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
        let loss = match removal {
            Removal::Deletion => Loss::Delete,
            Removal::Expiry => Loss::Expire,
            Removal::Theft => Loss::Steal,
        };
        let told = if self.lease.is_some() { Told::WhenAsked } else { Told::AtOnce };
        if self.server.lose(name, loss, told) {
            Ok(())
        } else {
            Err(Failure::new(format!("{name:?} is free")))
        }
    }
}

/// The two harnesses differ only in the lease.
macro_rules! harness {
    ($harness:ident, $lease:expr) => {
        #[async_trait]
        impl Harness for $harness {
            async fn start() -> Outcome<Self> {
                Ok(Self(Fixture::new($lease)))
            }

            fn lacks(&self, ability: Ability) -> Option<&'static str> {
                match ability {
                    Ability::SeparateProcesses | Ability::SeenDeaths => {
                        Some("the server lives in the memory of one process")
                    }
                    Ability::Silence | Ability::SilentWaiters => {
                        Some("there is no connection that could be silent")
                    }
                    Ability::CheckedGrants => Some("a grant says how long it lasts"),
                    Ability::RestartServer | Ability::StopServer => {
                        Some("the server is a part of the program")
                    }
                    _ => None,
                }
            }

            fn engine(&self) -> EngineChoice {
                if self.0.lease.is_some() { EngineChoice::Caller } else { EngineChoice::Own }
            }

            fn lease(&self) -> Option<Duration> {
                self.0.lease
            }

            fn lasting_lease(&self) -> Option<Duration> {
                self.0.lease.map(|_| LASTING)
            }

            async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
                self.0.server.client_with(self.0.options(LEASE), builder)
            }

            async fn lasting_client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
                self.0.server.client_with(self.0.options(LASTING), builder)
            }

            async fn leftovers(&self) -> Outcome<Vec<String>> {
                Ok(self.0.leftovers())
            }

            async fn sever(&self) -> Outcome {
                self.0.server.faults().sever();
                Ok(())
            }

            async fn heal(&self) -> Outcome {
                self.0.server.faults().heal();
                Ok(())
            }

            async fn lose_reply(&self, operation: Operation, _: Losing) -> Outcome {
                self.0.server.faults().inject(operation, Fault::DropReply);
                Ok(())
            }

            async fn hold_reply(&self, operation: Operation) -> Outcome {
                self.0.hold_reply(operation);
                Ok(())
            }

            async fn reply_is_held(&self) -> Outcome {
                self.0.gate().reached().await;
                Ok(())
            }

            async fn let_replies_go(&self) -> Outcome {
                self.0.gate().open();
                Ok(())
            }

            async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
                self.0.take_away(name, removal)
            }
        }
    };
}

harness!(WithoutLease, None);
harness!(WithLease, Some(LEASE));
