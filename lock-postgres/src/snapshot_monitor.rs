//! Sees to it that waits in the server's queue keep no other session waiting.
//!
//! A session that waits for a lock holds a snapshot, and `CREATE INDEX CONCURRENTLY` and others wait until all older
//! snapshots are gone. So the client looks now and then whether a session waits for one of its waits. If so, they begin anew,
//! one after the other in the order in which they came, each when the one before it is in the queue again. So they keep their
//! order among each other; waits of other clients may overtake them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{BackendContext, LockError, Operation};

use crate::control::{Control, Seen};
use crate::link;
use crate::options::Waiting;
use crate::server::SessionId;
use crate::settings::Settings;
use crate::statement;

/// How often the client looks.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The client looks so rarely that the server spends at most this part of the time of one processor on it.
const SHARE: u32 = 50;

/// The pause before the client looks again whether a wait is in the queue.
const SOON: Duration = Duration::from_millis(2);

pub(crate) struct SnapshotMonitor {
    context: BackendContext,
    settings: Arc<Settings>,
    control: Arc<Control>,
    watch: Mutex<Watch>,
    /// Whether it has said that waits have snapshots.
    has_warned: AtomicBool,
}

#[derive(Default)]
struct Watch {
    /// In the order in which they began.
    waits: Vec<(SessionId, Weak<link::Waiting>)>,
    is_running: bool,
}

fn is_over(waiting: &Weak<link::Waiting>) -> bool {
    waiting.upgrade().is_none_or(|waiting| waiting.has_answer())
}

impl SnapshotMonitor {
    pub(crate) fn new(context: BackendContext, settings: Arc<Settings>, control: Arc<Control>) -> Arc<Self> {
        Arc::new(Self {
            context,
            settings,
            control,
            watch: Mutex::default(),
            has_warned: AtomicBool::new(false),
        })
    }

    /// Monitors this wait until it is over.
    pub(crate) fn add(self: &Arc<Self>, session: SessionId, waiting: &Arc<link::Waiting>) {
        let mut watch = self.watch.lock();
        // Otherwise a client whose waits are short would keep all that begin until the next look.
        while watch.waits.last().is_some_and(|(_, waiting)| is_over(waiting)) {
            watch.waits.pop();
        }
        watch.waits.push((session, Arc::downgrade(waiting)));
        if !std::mem::replace(&mut watch.is_running, true) {
            self.context.spawn(Arc::clone(self).monitor());
        }
    }

    /// The waits that are not over. If there is none, the watch ends.
    fn waits(&self) -> Option<Vec<(SessionId, Arc<link::Waiting>)>> {
        let mut watch = self.watch.lock();
        watch.waits.retain(|(_, waiting)| !is_over(waiting));
        watch.is_running = !watch.waits.is_empty();
        let waits = watch.waits.iter().filter_map(|(session, waiting)| Some((*session, waiting.upgrade()?)));
        watch.is_running.then(|| waits.collect())
    }

    async fn monitor(self: Arc<Self>) {
        let clock = self.context.clock();
        let mut pause = CHECK_EVERY;
        loop {
            clock.sleep_until(clock.now().plus(pause)).await;
            let Some(waits) = self.waits() else { return };
            pause = CHECK_EVERY;
            if self.settings.waiting == Waiting::Quiet {
                self.look_for_snapshots(&waits).await;
            }
            let given_way = match self.look(&waits).await {
                Ok((is_waited_for, took)) => {
                    pause = pause.max(took * SHARE);
                    if is_waited_for { self.give_way(&waits).await } else { Ok(()) }
                }
                Err(error) => Err(error),
            };
            if let Err(error) = given_way {
                tracing::debug!(target: "distlock", %error, "the client does not know whether its waits keep others waiting");
            }
        }
    }

    /// Whether a session waits for one of the waits, and how long the server took to find out.
    async fn look(&self, waits: &[(SessionId, Arc<link::Waiting>)]) -> Result<(bool, Duration), LockError> {
        let sessions: Vec<_> = waits.iter().map(|(session, _)| *session).collect();
        let answer = self.control.ask(Operation::Inspect, statement::waited_for(&sessions)).await?;
        let took = answer.rows.first().and_then(|row| row.get(1)?.as_deref()?.parse().ok());
        Ok((answer.value() == Some("true"), Duration::from_micros(took.unwrap_or_default())))
    }

    /// Says once if a wait that was to have no snapshot has one. Then it begins anew like others when that keeps a session waiting.
    async fn look_for_snapshots(&self, waits: &[(SessionId, Arc<link::Waiting>)]) {
        if self.has_warned.load(Ordering::Relaxed) {
            return;
        }
        let sessions: Vec<_> = waits.iter().map(|(session, _)| *session).collect();
        let found = self.control.ask(Operation::Inspect, statement::with_snapshot(&sessions)).await;
        if found.is_ok_and(|found| !found.rows.is_empty()) && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "distlock",
                server = %self.settings.endpoint,
                "this server lets a wait with wait=quiet have a snapshot: such waits are like those with wait=server"
            );
        }
    }

    async fn give_way(&self, waits: &[(SessionId, Arc<link::Waiting>)]) -> Result<(), LockError> {
        tracing::debug!(target: "distlock", waits = waits.len(), "another session waits for the snapshot of a wait: the waits begin anew");
        let clock = self.context.clock();
        // Who is at the head of a semaphore's queue does not wait at the server.
        for (session, waiting) in waits.iter().filter(|(_, waiting)| !waiting.is_at_head()) {
            let rounds = waiting.give_way();
            let deadline = clock.now().plus(self.settings.request_timeout);
            while !waiting.has_answer() && clock.now() < deadline {
                clock.sleep_until(clock.now().plus(SOON)).await;
                if waiting.rounds() > rounds
                    && let Seen::Waiting | Seen::Gone = self.control.look_at_wait(*session).await?
                {
                    break;
                }
            }
        }
        Ok(())
    }
}
