//! Sees to it that waits in the server's queue keep no other session waiting, and no old rows from `VACUUM`.
//!
//! A session that waits for a lock holds a snapshot. `CREATE INDEX CONCURRENTLY` and others wait until all older snapshots are
//! gone, and `VACUUM` keeps the rows that the oldest one might need. So the client looks now and then whether a session waits for
//! the snapshot of a wait, of whichever client, or the snapshot of one of its own waits has become old. If so, its waits begin anew,
//! one after the other in the order in which they came, each when the one before it is in the queue again. So they keep their
//! order among each other; waits of other clients may overtake them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{LockError, Operation};
use lock_sql::{Seen, Waiting};

use crate::dialect::Control;
use crate::key::Key;
use crate::server::SessionId;
use crate::statement;

/// How often the client looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The pause before the client looks again whether a wait is in the queue.
const SOON: Duration = Duration::from_millis(2);

#[derive(Default)]
pub(crate) struct SnapshotMonitor(Mutex<Watch>);

#[derive(Default)]
struct Watch {
    /// In the order in which they began.
    waits: Vec<(SessionId, Weak<Waiting>)>,
    is_running: bool,
}

fn is_over(waiting: &Weak<Waiting>) -> bool {
    waiting.upgrade().is_none_or(|waiting| waiting.has_answer())
}

impl SnapshotMonitor {
    /// Monitors this wait until it is over.
    pub(crate) fn add(self: &Arc<Self>, control: &Arc<Control>, session: SessionId, waiting: &Arc<Waiting>) {
        let mut watch = self.0.lock();
        // Otherwise a client whose waits are short would keep all that begin until the next look.
        while watch.waits.last().is_some_and(|(_, waiting)| is_over(waiting)) {
            watch.waits.pop();
        }
        watch.waits.push((session, Arc::downgrade(waiting)));
        if !std::mem::replace(&mut watch.is_running, true) {
            control.settings().context.spawn(Arc::clone(self).monitor(Arc::clone(control)));
        }
    }

    /// The waits that are not over. If there is none, the watch ends.
    fn waits(&self) -> Option<Vec<(SessionId, Arc<Waiting>)>> {
        let mut watch = self.0.lock();
        watch.waits.retain(|(_, waiting)| !is_over(waiting));
        watch.is_running = !watch.waits.is_empty();
        let waits = watch.waits.iter().filter_map(|(session, waiting)| Some((*session, waiting.upgrade()?)));
        watch.is_running.then(|| waits.collect())
    }

    async fn monitor(self: Arc<Self>, control: Arc<Control>) {
        let clock = control.settings().clock();
        loop {
            clock.sleep_until(clock.now().plus(LOOK_EVERY)).await;
            let Some(waits) = self.waits() else { return };
            if let Err(error) = begin_anew_if_in_the_way(&control, &waits).await {
                tracing::debug!(target: "distlock", %error, "the client does not know whether its waits are in the way of others");
            }
        }
    }
}

async fn begin_anew_if_in_the_way(
    control: &Control,
    waits: &[(SessionId, Arc<Waiting>)],
) -> Result<(), LockError> {
    let sessions: Vec<_> = waits.iter().map(|(session, _)| *session).collect();
    let answer = control.ask(Operation::Inspect, statement::are_in_the_way(&sessions)).await?;
    if answer.value() != Some("true") {
        return Ok(());
    }
    tracing::debug!(target: "distlock", waits = waits.len(), "the snapshots of waits are in the way of others: the waits begin anew");
    let clock = control.settings().clock();
    // Who is at the head of a semaphore's queue does not wait at the server.
    for (session, waiting) in waits.iter().filter(|(_, waiting)| !waiting.is_at_head()) {
        let rounds = waiting.give_way();
        let deadline = clock.now().plus(control.settings().request_timeout);
        while !waiting.has_answer() && clock.now() < deadline {
            clock.sleep_until(clock.now().plus(SOON)).await;
            if waiting.rounds() > rounds
                // What it says does not depend on the lock.
                && let Seen::Waiting | Seen::Gone =
                    control.look_at_wait(&Key::of_number(0), session, false).await?
            {
                break;
            }
        }
    }
    Ok(())
}
