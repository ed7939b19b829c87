//! Which locks of a server change hands.

use std::collections::HashMap;
use std::time::Duration;

use crate::api::client::LockClient;
use crate::runtime::{Moment, race};
use crate::types::{HolderId, LockError, LockKind, LockList, LockName, LockStatus, Participant};

#[cfg(any(doc, test))]
use crate::types::error::ErrorKind;

/// The shortest time between two looks: each asks for all locks.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// What a [`LockWatch`] has seen of a holder or a waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockChange {
    /// The lock or semaphore.
    pub name: LockName,
    /// What has changed.
    pub kind: ChangeKind,
    /// Who holds it or waits for it, or did so when it was last seen. Its mode tells a semaphore from a lock.
    pub participant: Participant,
}

/// What has changed between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// It waits for the lock.
    Waiting,
    /// It holds the lock.
    Granted,
    /// It does not hold the lock any more. Servers do not say whether it has released or lost it.
    Ended,
    /// It does not wait any more: it has given up, or it has had the lock between two looks.
    Left,
}

/// A view of all locks of a server that are in use, of all clients: differences between one [list](LockClient::list) and the next. What
/// begins and ends between two looks is not seen.
#[derive(Debug)]
#[must_use = "it looks when it is asked for changes"]
pub struct LockWatch {
    client: LockClient,
    interval: Duration,
    next: Moment,
    seen: Vec<LockStatus>,
    trouble: Option<LockError>,
}

impl LockClient {
    /// Returns a view of the changes of the server's locks, which asks for a list once in each `interval`, at most ten times a second;
    /// that of a [scoped](Self::scoped) client sees the names that begin with its prefix.
    ///
    /// ```
    /// # use lock_core::ChangeKind;
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let mut watch = locks.watch(Duration::from_secs(1));
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert_eq!(watch.changes().await?[0].kind, ChangeKind::Granted);
    /// guard.release().await?;
    /// assert_eq!(watch.changes().await?[0].kind, ChangeKind::Ended);
    /// # Ok(()) });
    /// ```
    pub fn watch(&self, interval: Duration) -> LockWatch {
        let (interval, next) = (interval.max(SHORTEST_INTERVAL), self.clock().now());
        LockWatch { client: self.clone(), interval, next, seen: Vec::new(), trouble: None }
    }
}

impl LockWatch {
    /// Waits until a look shows other holders or waiters than the last one; the first shows all that there are. Of one lock,
    /// what has ended comes first. It also returns, perhaps without a change, when [trouble](Self::trouble) begins or ends.
    ///
    /// While the server cannot be reached, it waits. A lock that cannot be inspected is taken to be as it was.
    ///
    /// # Errors
    /// Those of [`LockClient::list`] that do not pass by themselves; [`ErrorKind::Closed`] after [`LockClient::close`].
    ///
    /// # Cancel safety
    /// The future may be dropped and the method called again at any time.
    pub async fn changes(&mut self) -> Result<Vec<LockChange>, LockError> {
        let clock = self.client.clock().clone();
        loop {
            let _ = race(self.client.closing(), clock.sleep_until(self.next)).await;
            self.client.refuse_when_closing()?;
            let found = self.client.list().await;
            self.next = clock.now().plus(self.interval);
            let found = match found {
                Err(why) if why.is_retryable() => LockList { locks: self.seen.clone(), failures: vec![why] },
                found => found?,
            };
            let trouble = found.failures.first().cloned();
            let is_other = trouble.as_ref().map(LockError::name) != self.trouble().map(LockError::name);
            self.trouble = trouble;
            let changes = self.see(found);
            if is_other || !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    /// Returns why the last look has failed, unless [`changes`](Self::changes) has returned that error. An error that names a lock is about
    /// the first that could not be inspected.
    pub fn trouble(&self) -> Option<&LockError> {
        self.trouble.as_ref()
    }

    /// Returns the locks in use as the last look has shown them, in the order of their names.
    pub fn locks(&self) -> &[LockStatus] {
        &self.seen
    }

    fn see(&mut self, LockList { mut locks, failures }: LockList) -> Vec<LockChange> {
        let rules = self.client.capabilities().names;
        let is_unknown = |lock: &&LockStatus| {
            let at_server = rules.apply(&lock.name);
            // Some backends name it as their users do.
            let is_it = |failed: &LockName| *failed == lock.name || failed.as_str() == at_server.as_str();
            failures.iter().filter_map(LockError::name).any(is_it)
                && !locks.iter().any(|now| key(now) == key(lock))
        };
        let unknown: Vec<_> = self.seen.iter().filter(is_unknown).cloned().collect();
        locks.extend(unknown);
        locks.sort_by(|one, other| one.name.cmp(&other.name));
        let before = std::mem::replace(&mut self.seen, locks);
        differences(&before, &self.seen)
    }
}

fn key(lock: &LockStatus) -> (&LockName, Option<LockKind>) {
    (&lock.name, lock.holders.iter().chain(&lock.waiters).next().map(|one| one.mode.kind()))
}

/// A participant of a lock, and whether it holds it.
type Participation<'a> = (&'a LockName, LockKind, &'a HolderId, bool);

fn participations(locks: &[LockStatus]) -> impl Iterator<Item = (Participation<'_>, &Participant)> {
    locks.iter().flat_map(|lock| {
        let holders = lock.holders.iter().map(|one| (one, true));
        let waiters = lock.waiters.iter().map(|one| (one, false));
        holders.chain(waiters).map(|(one, holds)| ((&lock.name, one.mode.kind(), &one.id, holds), one))
    })
}

fn differences(old: &[LockStatus], new: &[LockStatus]) -> Vec<LockChange> {
    let (before, after): (HashMap<_, _>, HashMap<_, _>) =
        (participations(old).collect(), participations(new).collect());
    let change = |(name, ..): Participation<'_>, kind, participant: &Participant| LockChange {
        name: name.clone(),
        kind,
        participant: participant.clone(),
    };
    // Some servers give one id to all holds of a connection.
    let goes_on = |now: &HashMap<_, &Participant>, of: &Participation<'_>, one: &Participant| {
        now.get(of).is_some_and(|other| other.token == one.token || other.token.xor(one.token).is_some())
    };
    let ended = participations(old).filter(|(of, one)| !goes_on(&after, of, one)).filter_map(|(of, one)| {
        let (name, kind, id, holds) = of;
        let is_granted = !holds && after.contains_key(&(name, kind, id, true));
        let kind = if holds { ChangeKind::Ended } else { ChangeKind::Left };
        (!is_granted).then(|| change(of, kind, one))
    });
    let begun = participations(new)
        .filter(|(of, one)| !goes_on(&before, of, one))
        .map(|(of, one)| change(of, if of.3 { ChangeKind::Granted } else { ChangeKind::Waiting }, one));
    let mut changes: Vec<_> = ended.chain(begun).collect();
    changes.sort_by(|one, other| one.name.cmp(&other.name));
    changes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::api::builder::ClientBuilder;
    use crate::api::tests::fake::Fake;
    use crate::types::{FencingToken, Operation};

    fn lock(holders: &[(&str, u64)], waiters: &[&str]) -> Vec<LockStatus> {
        let mut lock = LockStatus::free(LockName::new("a").unwrap());
        let one = |id: &str| Participant::new(HolderId::new(id));
        let token = |token| (token > 0).then(|| FencingToken::new(token));
        lock.holders = holders.iter().map(|(id, number)| one(id).with_token(token(*number))).collect();
        lock.waiters = waiters.iter().map(|id| one(id)).collect();
        vec![lock]
    }

    #[test]
    fn two_lists_differ_in_who_holds_and_who_waits() {
        use ChangeKind::{Ended, Granted, Left, Waiting};
        let held = lock(&[("one", 1)], &["two", "three"]);
        for (new, expected) in [
            (lock(&[("one", 1)], &["three", "two"]), &[] as &[(ChangeKind, &str)]),
            (lock(&[("one", 0)], &["two", "three"]), &[]),
            (lock(&[("two", 2)], &["three"]), &[(Ended, "one"), (Granted, "two")]),
            (lock(&[("one", 1)], &["two", "four"]), &[(Left, "three"), (Waiting, "four")]),
            (lock(&[("one", 5)], &["two", "three"]), &[(Ended, "one"), (Granted, "one")]),
            (Vec::new(), &[(Ended, "one"), (Left, "two"), (Left, "three")]),
        ] {
            let changes = differences(&held, &new);
            let seen: Vec<_> = changes.iter().map(|one| (one.kind, one.participant.id.as_str())).collect();
            assert_eq!(seen, expected);
        }
    }

    /// What cannot be inspected may go on for ever, and be another user's.
    #[test]
    fn only_a_lock_that_cannot_be_inspected_is_taken_to_be_as_it_was() {
        let client = Fake::default().client(ClientBuilder::new());
        let mut watch = client.watch(SHORTEST_INTERVAL);
        let named = |name: &str| {
            let mut lock = lock(&[("one", 1)], &[]);
            lock[0].name = LockName::new(name).unwrap();
            lock
        };
        watch.see(LockList { locks: [named("a"), named("b")].concat(), failures: Vec::new() });
        let unreadable = LockError::new(ErrorKind::Server, Operation::Inspect);
        let failures = vec![unreadable.on(&LockName::new("a").unwrap())];
        let changes = watch.see(LockList { locks: Vec::new(), failures });
        let seen: Vec<_> = changes.iter().map(|change| (change.name.as_str(), change.kind)).collect();
        assert_eq!(seen, [("b", ChangeKind::Ended)]);
        assert_eq!(watch.locks(), named("a"));
    }
}
