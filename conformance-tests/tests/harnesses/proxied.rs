//! What the harnesses of real servers have in common: a `Fixture` with a `proxy` in front of the `server`.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use conformance_tests::{Failure, Outcome, ServerChange};
use lock_core::spi;
use test_servers::GivenServer;
use tokio::sync::Mutex;

/// A server that this program has started, or one that the user has.
pub(super) enum Server<S> {
    Own(Own<S>),
    Given(GivenServer),
}

/// Servers that no case uses at the moment, for a case that disturbs one.
type Idle<S> = spi::Mutex<Vec<Arc<S>>>;

pub(super) struct Own<S> {
    server: Arc<S>,
    idle: Arc<Idle<S>>,
    place: Place,
    /// Whether it can be another case's alone after this one.
    is_spare: AtomicBool,
}

impl<S> Deref for Own<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.server
    }
}

impl<S> Drop for Own<S> {
    fn drop(&mut self) {
        if *self.is_spare.get_mut() {
            self.idle.lock().push(Arc::clone(&self.server));
        }
    }
}

/// The servers of all cases. They end with the last case that uses one of them.
pub(super) struct Running<S> {
    shared: Weak<S>,
    idle: Weak<Idle<S>>,
}

impl<S> Running<S> {
    pub(super) const fn none() -> Mutex<Self> {
        Mutex::const_new(Self { shared: Weak::new(), idle: Weak::new() })
    }
}

/// Whether other cases use the server, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Shared,
    Alone,
}

/// Why a case is left out at a given server.
pub(super) const ONLY_A_CLIENT: &str = "the server is given by DISTLOCK_TEST_…: the suite is a client of it, and takes no lock away at the server";

impl<S> Server<S> {
    /// Attaches to the server that the variable for `name` names. Without that, uses one that is running, or starts it.
    pub(super) async fn find(
        place: Place,
        name: &str,
        schemes: &[&str],
        running: &Mutex<Running<S>>,
        start: impl AsyncFnOnce() -> Outcome<S>,
    ) -> Outcome<Self> {
        if let Some(given) = GivenServer::of(name, schemes)? {
            return Ok(Self::Given(given));
        }
        let mut running = running.lock().await;
        let idle = running.idle.upgrade().unwrap_or_else(|| Arc::new(Idle::new(Vec::new())));
        running.idle = Arc::downgrade(&idle);
        let known = match place {
            Place::Shared => running.shared.upgrade(),
            Place::Alone => idle.lock().pop(),
        };
        let server = match known {
            Some(server) => server,
            None => Arc::new(start().await?),
        };
        if place == Place::Shared {
            running.shared = Arc::downgrade(&server);
        }
        Ok(Self::Own(Own { server, idle, place, is_spare: AtomicBool::new(place == Place::Alone) }))
    }

    /// Returns the lease of clients of this place. Where a case starts the server again, it must outlast that on a busy machine, and
    /// one connection that the starting server does not answer (ZooKeeper).
    pub(super) fn lease(&self, shared: Duration) -> Duration {
        match self {
            Self::Own(own) if own.place == Place::Alone => shared.max(Duration::from_secs(60)),
            _ => shared,
        }
    }

    /// Notes what a case does to the server that it has alone: what it does not put in order goes with it.
    pub(super) fn changes(&self, change: ServerChange) {
        if let Self::Own(own) = self {
            own.is_spare
                .store(matches!(change, ServerChange::Resume | ServerChange::Restart), Ordering::Relaxed);
        }
    }

    /// Returns the server if this program has started it, with all rights.
    pub(super) fn own(&self) -> Outcome<&S> {
        match self {
            Self::Own(server) => Ok(server),
            Self::Given(_) => Err(Failure::new(ONLY_A_CLIENT)),
        }
    }
}

/// Returns a word that neither another case nor another run has.
pub(super) fn unique() -> String {
    static RUN: OnceLock<u128> = OnceLock::new();
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_millis());
    let run = RUN.get_or_init(|| now() * 100_000 + u128::from(std::process::id() % 100_000));
    format!("test{run:x}x{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Implements the harness with the methods of a place, which `start` returns; `requests` returns the request that
/// decides an operation. The methods that follow are those of this harness alone.
macro_rules! proxied_harness {
    ($harness:ident, left_out: $left_out:expr, start: $start:expr, requests: $requests:expr, $($methods:tt)*) => {
        #[async_trait]
        impl Harness for $harness {
            fn left_out() -> Option<String> {
                $left_out
            }

            async fn start() -> Outcome<Self> {
                Ok(Self(($start)(proxied::Place::Shared).await?))
            }

            async fn start_alone() -> Outcome<Self> {
                Ok(Self(($start)(proxied::Place::Alone).await?))
            }

            fn lacks(&self, ability: Ability) -> Option<&'static str> {
                let is_for_own =
                    matches!(ability, Ability::Removal(_) | Ability::RestartServer | Ability::StopServer);
                if is_for_own && self.0.server.own().is_err() {
                    return Some(proxied::ONLY_A_CLIENT);
                }
                lacks(ability)
            }

            async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
                connect(&self.0.address(), builder).await
            }

            async fn lasting_client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
                connect(&self.0.lasting_address(self.0.proxy.address()), builder).await
            }

            fn lasting_lease(&self) -> Option<Duration> {
                Some(LASTING)
            }

            fn lasting_address(&self) -> Option<String> {
                Some(self.0.lasting_address(self.0.proxy.address()))
            }

            fn lease(&self) -> Option<Duration> {
                Some(self.0.lease())
            }

            fn address(&self) -> Option<String> {
                Some(self.0.address())
            }

            async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError> {
                connect(address, builder).await
            }

            async fn leftovers(&self) -> Outcome<Vec<String>> {
                let mut left = match self.0.server {
                    proxied::Server::Own(_) => self.0.leftovers().await?,
                    proxied::Server::Given(_) => Vec::new(),
                };
                let connections = self.0.proxy.connected_clients();
                if connections > 0 {
                    left.push(format!("{connections} connections"));
                }
                Ok(left)
            }

            async fn silence(&self, silence: Silence) -> Outcome {
                if silence != Silence::Replies {
                    self.0.proxy.blackhole(Direction::ToServer);
                }
                if silence != Silence::Requests {
                    self.0.proxy.blackhole(Direction::ToClient);
                }
                Ok(())
            }

            async fn bystander(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
                let address = match &self.0.server {
                    Server::Own(server) => server.address(),
                    Server::Given(server) => server.address(),
                };
                connect(&self.0.lasting_address(address), builder).await
            }

            async fn change_server(&self, change: ServerChange) -> Outcome {
                let server = self.0.server.own()?;
                self.0.server.changes(change);
                match change {
                    ServerChange::Stop => server.stop(),
                    ServerChange::Resume => server.resume(),
                    ServerChange::Kill => server.kill(),
                    ServerChange::Restart => self.0.restart().await,
                }
            }

            async fn heal(&self) -> Outcome {
                self.0.proxy.heal();
                Ok(())
            }

            async fn lose_reply(&self, operation: Operation, losing: Losing) -> Outcome {
                self.0.proxy.lose_reply($requests(operation)?, losing);
                Ok(())
            }

            async fn hold_reply(&self, operation: Operation) -> Outcome {
                self.0.proxy.hold_reply($requests(operation)?);
                Ok(())
            }

            async fn reply_is_held(&self) -> Outcome {
                self.0.proxy.is_held().await;
                Ok(())
            }

            async fn let_replies_go(&self) -> Outcome {
                self.0.proxy.let_go();
                Ok(())
            }

            async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
                self.0.take_away(name, removal).await
            }

            $($methods)*
        }
    };
}
