//! The environment of a case: clients, workers, and ways to wait for events.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::{During, Failure, Outcome, ensure};
use lock_core::spi::Mutex;
use lock_core::{
    ClientBuilder, Clock, DistributedLock, EngineChoice, Fencing, Hold, Inspection, LockClient, LockError,
    LockGuard, LockName, LockStatus, LossReason, ManualClock, Participant,
};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::case::Leases;
use crate::harness::{Ability, Harness};
use crate::tier::Tier;
use crate::worker::Worker;

/// How often to check a condition that sends no event.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The longest pause between two such checks if the first ones fail: most ask a server, and take processor time from what they wait for.
const SELDOM: Duration = Duration::from_millis(20);

/// The clients of the case that are still to be closed at its end.
#[derive(Debug)]
struct Opened(Vec<LockClient>);

/// The environment of one case.
pub(crate) struct Stage {
    harness: Box<dyn Harness>,
    leases: Leases,
    opened: Mutex<Opened>,
    count: AtomicUsize,
}

impl Stage {
    pub(crate) fn new(harness: Box<dyn Harness>, leases: Leases) -> Self {
        Self { harness, leases, opened: Mutex::new(Opened(Vec::new())), count: AtomicUsize::new(0) }
    }

    pub(crate) fn harness(&self) -> &dyn Harness {
        &*self.harness
    }

    /// Returns how long to wait for something that has to happen.
    pub(crate) fn patience(&self) -> Duration {
        self.harness.patience()
    }

    /// Returns how long the server keeps a lock of the case's clients that is not renewed, if the backend has leases.
    pub(crate) fn lease(&self) -> Option<Duration> {
        match self.leases {
            Leases::Short => self.harness.lease(),
            Leases::Lasting => self.harness.lasting_lease(),
        }
    }

    /// Returns the settings of each client, to which a case adds its own.
    pub(crate) fn builder(&self) -> ClientBuilder {
        let callers = std::env::var_os("DISTLOCK_ENGINE").is_some_and(|value| value == "caller");
        let engine = if callers { EngineChoice::Caller } else { self.harness.engine() };
        ClientBuilder::new().engine(engine)
    }

    /// Creates a client that is closed at the end of the case.
    pub(crate) async fn client(&self) -> Outcome<LockClient> {
        self.client_with(self.builder()).await
    }

    /// Creates a client with settings that is closed at the end of the case.
    pub(crate) async fn client_with(&self, builder: ClientBuilder) -> Outcome<LockClient> {
        Ok(self.opened(self.unopened(builder).await.during("make a client")?))
    }

    /// Creates a client whose clock stands still until the case advances it, and whose lease outlasts the case at the
    /// server. That is the seam for faults that would take a lease, an interval or a wait in real time:
    ///
    /// * As long as the clock stands still, no renewal and no timeout is due: what the client learns, it was told.
    /// * `time.advance(…)` makes exactly as many intervals pass as the case says. The deadline of a hold is met to the
    ///   nanosecond: advance by what [`Hold::remaining`] says.
    /// * Then the case ends the lease at the server as well, with [`Removal::Expiry`](crate::Removal::Expiry).
    /// * A client that waits for an answer may need a pause by its clock: [`Stage::lets_pass`] and, when the fault is over,
    ///   [`Stage::heal_and_let_pass`].
    ///
    /// Another client that the fault must not affect is a [`Stage::bystander`].
    pub(crate) async fn frozen(&self) -> Outcome<(LockClient, ManualClock)> {
        let (clock, time) = Clock::manual();
        let connecting = self.harness.lasting_client(self.builder().clock(clock));
        let passing = async {
            // A busy server may not answer the first time, and the client pauses by this clock.
            loop {
                self.lets_pass(&time, LOOK_EVERY).await;
            }
        };
        let client = tokio::select! {
            client = connecting => client,
            never = passing => never,
        };
        Ok((self.opened(client.during("make a client whose clock stands still")?), time))
    }

    /// Creates a client whose lease outlasts the case at the server, as that of a [`Stage::frozen`] one does.
    pub(crate) async fn lasting(&self) -> Outcome<LockClient> {
        let client = self.harness.lasting_client(self.builder()).await;
        Ok(self.opened(client.during("make a client whose lease lasts")?))
    }

    /// Creates a client that connects directly, and that [`Harness::silence`] does not affect.
    pub(crate) async fn bystander(&self) -> Outcome<LockClient> {
        let bystander = self.harness.bystander(self.builder()).await;
        Ok(self.opened(bystander.during("make a bystander")?))
    }

    /// Returns how long the server keeps a lock of a [`Stage::frozen`] client that it does not hear.
    pub(crate) fn lasting_lease(&self) -> Outcome<Duration> {
        self.harness.lasting_lease().ok_or_else(|| Failure::new("the harness has no lease"))
    }

    /// Lets so much time pass for a client whose clock stands still, and gives it a moment to do what is due.
    pub(crate) async fn lets_pass(&self, time: &ManualClock, duration: Duration) {
        time.advance(duration);
        tokio::time::sleep(LOOK_EVERY).await;
    }

    /// Ends an outage. From now on the clock of the client runs, so that it can close.
    pub(crate) async fn heal_and_let_pass(&self, time: &ManualClock) -> Outcome {
        self.harness.heal().await?;
        let_run(time, 1);
        Ok(())
    }

    /// Creates a client that is not closed at the end of the case.
    async fn unopened(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        match self.leases {
            Leases::Short => self.harness.client(builder).await,
            Leases::Lasting => self.harness.lasting_client(builder).await,
        }
    }

    /// Closes this client, too, at the end of the case.
    pub(crate) fn opened(&self, client: LockClient) -> LockClient {
        self.opened.lock().0.push(client.clone());
        client
    }

    /// Creates a client elsewhere: in a process of its own if the backend reaches beyond one process, otherwise on a thread.
    pub(crate) async fn worker(&self) -> Outcome<Worker> {
        let label = format!("worker-{}", self.count.fetch_add(1, Ordering::Relaxed));
        if self.harness.lacks(Ability::SeparateProcesses).is_some() {
            let client = self.unopened(self.builder().label(&label)).await?;
            return Worker::thread(client, &label, self.patience()).await;
        }
        let address = match self.leases {
            Leases::Short => self.harness.address(),
            Leases::Lasting => self.harness.lasting_address(),
        };
        let address = address.ok_or_else(|| {
            Failure::new("the harness claims separate processes and has no address for them")
        })?;
        Worker::process(&address, &label, self.patience()).await
    }

    /// Creates several clients elsewhere.
    pub(crate) async fn workers(&self, count: usize) -> Outcome<Vec<Worker>> {
        let mut workers = Vec::with_capacity(count);
        for _ in 0..count {
            workers.push(self.worker().await?);
        }
        Ok(workers)
    }

    /// Returns the output of `future`, which must complete soon.
    pub(crate) async fn soon<T>(&self, what: &str, future: impl Future<Output = T>) -> Outcome<T> {
        within(self.patience(), what, future).await
    }

    /// Waits until a hold is lost.
    pub(crate) async fn loss(&self, hold: &Hold) -> Outcome<LossReason> {
        let reason = self.soon("the loss", hold.lost()).await?;
        reason.ok_or_else(|| Failure::new("the hold was released instead of lost"))
    }

    /// Waits until `condition` holds, which must happen soon. For conditions that send no event.
    pub(crate) async fn until<F: Future<Output = Outcome<bool>>>(
        &self,
        what: &str,
        mut condition: impl FnMut() -> F,
    ) -> Outcome {
        let (deadline, mut pause) = (Instant::now() + self.patience(), LOOK_EVERY);
        while !condition().await.during(what)? {
            ensure!(Instant::now() < deadline, "{what}: not so within {:?}", self.patience());
            tokio::time::sleep(pause).await;
            pause = (pause + LOOK_EVERY).min(SELDOM);
        }
        Ok(())
    }

    /// Ends an outage, and waits until all clients of the case have contact again: each notices that in its own time.
    pub(crate) async fn heal(&self) -> Outcome {
        self.harness.heal().await?;
        let clients = self.opened.lock().0.clone();
        for client in clients {
            let lock = client.mutex("tried after an outage")?;
            self.until("contact after an outage", || async {
                match lock.try_acquire().await {
                    Err(error) if error.is_retryable() => Ok(false),
                    answer => Ok(answer.map(drop).is_ok()),
                }
            })
            .await?;
        }
        Ok(())
    }

    /// Returns how often to repeat a step that seldom fails.
    pub(crate) fn rounds(&self, many: u32) -> u32 {
        self.harness.rounds(Tier::of_this_run().rounds(many)).max(1)
    }

    /// Waits until the lock has `count` waiters at the server.
    pub(crate) async fn queued(&self, client: &LockClient, name: &str, count: usize) -> Outcome {
        let what = format!("{count} waiting for {name:?}");
        self.until(&what, || async { Ok(self.waiting(client, name).await? == count) }).await
    }

    /// Returns how many waiters the lock has at the server.
    pub(crate) async fn waiting(&self, client: &LockClient, name: &str) -> Outcome<usize> {
        let (lock, deadline) = (LockName::new(name)?, Instant::now() + self.patience());
        loop {
            match self.harness.waiting_for(client, &lock).await {
                // A busy server may not answer in time.
                Err(_) if Instant::now() < deadline => tokio::time::sleep(SELDOM).await,
                waiting => return waiting,
            }
        }
    }

    /// Returns the status of the lock at the server; `None` if the backend does not show it.
    pub(crate) async fn status(&self, client: &LockClient, name: &str) -> Outcome<Option<LockStatus>> {
        let deadline = Instant::now() + self.patience();
        match client.capabilities().inspection {
            Inspection::None => Ok(None),
            _ => loop {
                match client.status(name).await {
                    // A busy server may not answer in time.
                    Err(error) if error.is_retryable() && Instant::now() < deadline => {}
                    answer => return Ok(Some(answer?)),
                }
            },
        }
    }

    /// Returns the holder of the lock, on a backend that shows it.
    pub(crate) async fn holder(&self, client: &LockClient, name: &str) -> Outcome<Participant> {
        let holders = self.status(client, name).await?.map(|status| status.holders).unwrap_or_default();
        let held_by = holders.len();
        let mut holders = holders.into_iter();
        let holder = holders.next().filter(|_| held_by == 1);
        holder.ok_or_else(|| Failure::new(format!("the status of {name:?} has {held_by} holders")))
    }

    /// Checks, as another client, that the lock has no holder and no waiters.
    pub(crate) async fn is_free(&self, observer: &LockClient, name: &str) -> Outcome {
        if let Some(status) = self.status(observer, name).await? {
            let (holders, waiters) = (status.holders.len(), status.waiters.len());
            ensure!(
                holders == 0 && waiters == 0,
                "{name:?} should be free and has {holders} holders and {waiters} waiters"
            );
        }
        let guard = self.tried(&observer.mutex(name)?).await?;
        let guard = guard.ok_or_else(|| Failure::new(format!("{name:?} should be free and is refused")))?;
        guard.release().await.during("release a lock that was free")
    }

    /// Tries to acquire the lock, until the server answers.
    pub(crate) async fn tried(&self, lock: &Arc<dyn DistributedLock>) -> Outcome<Option<LockGuard>> {
        let deadline = Instant::now() + self.patience();
        loop {
            match lock.try_acquire().await {
                // A busy server may not answer in time. The client undoes what it may have done, and tries again after that.
                Err(error) if error.is_retryable() && Instant::now() < deadline => {}
                answer => return Ok(answer?),
            }
        }
    }

    /// Waits until the lock has no holder and no waiters, as another client sees it.
    pub(crate) async fn becomes_free(&self, observer: &LockClient, name: &str) -> Outcome {
        match self.until(name, || async { Ok(self.is_free(observer, name).await.is_ok()) }).await {
            Ok(()) => Ok(()),
            // It says what is there.
            Err(_) => self.is_free(observer, name).await,
        }
    }

    /// Checks, as another client, that the lock is held.
    pub(crate) async fn is_held(&self, observer: &LockClient, name: &str) -> Outcome {
        match self.tried(&observer.mutex(name)?).await? {
            None => Ok(()),
            Some(_) => Err(Failure::new(format!("{name:?} should be held and was granted to another"))),
        }
    }

    /// Ends the case: closes its clients, and waits until nothing is left behind.
    pub(crate) async fn finish(&self) -> Outcome {
        let clients = std::mem::take(&mut self.opened.lock().0);
        for client in clients {
            client.close(self.patience()).await.during("close a client at the end")?;
        }
        let (deadline, mut pause) = (Instant::now() + self.patience(), LOOK_EVERY);
        loop {
            let left = self.harness.leftovers().await.during("look for what is left behind")?;
            if left.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "left behind: {}", left.join(", "));
            tokio::time::sleep(pause).await;
            pause = (pause + LOOK_EVERY).min(SELDOM);
        }
    }
}

/// Returns the output of `future`, which must complete within `patience`.
pub(crate) async fn within<T>(patience: Duration, what: &str, future: impl Future<Output = T>) -> Outcome<T> {
    tokio::time::timeout(patience, future)
        .await
        .map_err(|_| Failure::new(format!("{what}: nothing came of it within {patience:?}")))
}

/// Lets the clock of a client run until this is aborted or the case ends, so many times as fast as the time of the server.
pub(crate) fn let_run(time: &ManualClock, speed: u32) -> AbortHandle {
    let time = time.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            time.advance(LOOK_EVERY * speed);
        }
    })
    .abort_handle()
}

/// Returns whether the backend has fencing tokens.
pub(crate) fn has_tokens(client: &LockClient) -> bool {
    client.capabilities().fencing != Fencing::None
}
