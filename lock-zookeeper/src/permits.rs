//! Acquires permits of a semaphore, in the layout of Curator's `InterProcessSemaphoreV2`.
//!
//! ```text
//! <directory>/leases/_c_<uuid>-of<n>-lease-<number>        one for each permit
//! <directory>/locks/_c_<uuid>-<take>of<n>-lock-<number>    those that wait: the first is the head of the queue
//! ```
//! The number of permits is in the names, so it lasts as long as there is a holder or a waiter. Curator ignores that part of a name.
//!
//! **Create first, count then.** An attempt for *k* permits creates *k* nodes in one transaction, and holds its permits when its own
//! nodes are among the first *n* of `leases`. Each holder has counted all that came before it and still are there, so there are
//! never more than *n* permits, however late its view of the servers is, and whether or not it is alone at the head of the queue.
//!
//! * The first of the nodes says how many permits there are. Those that expect another number fail; until they have removed their
//!   nodes, none behind them begins to hold.
//! * Without waiters, an attempt creates its nodes at once. The transaction also counts both directories; if there is neither a
//!   waiter nor another holder, one round trip is enough. Otherwise it lists the holders, because they may use another number of
//!   permits. If its nodes do not fit it removes them, and from then on keeps to the queue.
//! * The head of the queue alone creates its nodes before they fit, and watches `leases` until they do. So none passes it.
//! * A waiter whose node in the queue is gone removes its nodes and begins anew: another one is the head now.

use std::num::NonZeroU32;
use std::sync::Arc;

use lock_core::{AcquireRequest, ErrorKind, LockError, LockName, Operation, PermitLimits, Wait};
use lock_entries::{Claim, Claims, Failed, Place, Record, newer};

use crate::attempt::{Attempted, random, step_back};
use crate::backend::ZooKeeperEntries;
use crate::blocker::{Blocker, Next};
use crate::contender::{AT_THE_END, Contender, ProtectionId, is_newer, number_of_permits, read_lease};
use crate::failure::Failure;
use crate::node::Made;
use crate::node_claim::{Names, NodeClaim};
use crate::queue::Predecessors;
use crate::session::{MOST_BYTES, longest_path};
use crate::waiter::Waiter;

/// The most permits that one attempt takes: each is a node that is watched.
const MOST_TAKEN: NonZeroU32 = NonZeroU32::new(256).unwrap();

pub(crate) const LIMITS: PermitLimits = PermitLimits::new(NonZeroU32::MAX, MOST_TAKEN);

/// The directory of those that wait, below that of the semaphore.
pub(crate) const QUEUE: &str = "locks";

/// The directory of the permits that are taken.
pub(crate) const LEASES: &str = "leases";

/// One attempt at some permits.
pub(crate) struct PermitsAttempt<'a> {
    pub(crate) backend: &'a ZooKeeperEntries,
    pub(crate) request: &'a AcquireRequest,
    pub(crate) claims: &'a Claims<NodeClaim>,
    pub(crate) take: u32,
    pub(crate) of: u32,
}

/// The claims of an attempt: on its permits, and on its place in the queue.
struct Pair {
    leases: Arc<NodeClaim>,
    queue: Arc<NodeClaim>,
}

impl PermitsAttempt<'_> {
    pub(crate) async fn make(self) -> Attempted {
        let pair = self.pair().await?;
        let Pair { leases, queue } = &pair;
        let data = Record::of(self.request, &self.backend.context)?.text()?;
        if queue.traces().has_left_something() {
            let made = self.backend.recipe.find_or_create(queue, &data).await?;
            return self.wait(&pair, made).await;
        }
        let (made, waiting) =
            self.backend.recipe.create_counting(leases, Some(queue.directory()), &data).await?;
        let tries = self.request.wait() == Wait::Try;
        let is_free = waiting == Some(0);
        if is_free && made.are_alone {
            return self.backend.grant(leases, &made, None).await;
        }
        if is_free || tries {
            let mut free = FreePermits::of(&self, &pair, &made);
            let fits = free.fits_now().await.map_err(|failure| failure.explain(Operation::Acquire))?;
            if is_free && fits == Some(true) {
                return self.backend.grant(leases, &made, None).await;
            }
            if tries {
                let first = Vec::from_iter(free.first.take());
                let naming = self.backend.name_holder(self.request, leases, first);
                let _ = tokio::join!(naming, step_back(self.request, leases));
                return Ok(None);
            }
        }
        // Sent one after the other, without waiting in between.
        let (removed, made) = tokio::join!(leases.take_back(), self.backend.recipe.create(queue, &data));
        removed.map_err(|failure| failure.explain(Operation::Acquire))?;
        self.wait(&pair, made?).await
    }

    /// Waits until the attempt is the head of the queue, and then until its permits are free.
    async fn wait(&self, pair: &Pair, mut queued: Made) -> Attempted {
        let Pair { leases, queue } = pair;
        let explained = |failure: Failure| failure.explain(Operation::Acquire);
        // Before checking the others, so that the waiter misses no loss of contact from then on.
        let mut waiter = Waiter::new(self.backend, self.request, queue, &queued.names)?;
        if !queued.are_alone {
            let children = match queued.children.take() {
                Some(children) => children,
                None => queue.session().list(queue.directory()).await.map_err(explained)?,
            };
            self.refuse_other_numbers(queued.first(), &children)?;
            let accepted = self.backend.recipe.accepted;
            let before =
                Predecessors::of(queue, &queued.names, &children, accepted).await.map_err(explained)?;
            let Some(before) = before else { return Ok(None) };
            if waiter.wait(before).await? == Place::Lost {
                return Ok(None);
            }
        }
        let data = Record::of(self.request, &self.backend.context)?.text()?;
        let made = self.backend.recipe.create(leases, &data).await?;
        // Also if it is alone: the watch over its own place comes before the grant.
        let free = FreePermits::of(self, pair, &made);
        if waiter.wait(free).await? == Place::Lost {
            return Ok(None);
        }
        let Some(grant) = self.backend.grant(leases, &made, None).await? else { return Ok(None) };
        // From here on the next one is the head.
        if queue.remove().await.is_err() {
            queue.leave();
        }
        Ok(Some(grant))
    }

    /// Fails if one that waits before this attempt expects another number of permits.
    fn refuse_other_numbers(&self, queued: &str, children: &[String]) -> Result<(), LockError> {
        let read = |name: &str| Contender::read(name, self.backend.recipe.accepted);
        let Some(own) = read(queued) else { return Ok(()) };
        let is_before = |name: &&String| read(name).is_some_and(|other| other.sequence < own.sequence);
        let numbers = children.iter().filter(is_before).filter_map(|name| number_of_permits(name));
        match numbers.map(|(_, of)| of).find(|of| *of != self.of) {
            Some(is) => Err(LockError::other_permits(self.request.name(), self.of, is)),
            None => Ok(()),
        }
    }

    /// The claims for the attempt. A place in the queue that an earlier call has got is kept; its permits are given back.
    async fn pair(&self) -> Result<Pair, LockError> {
        let backend = self.backend;
        let base = backend.directory(self.request.physical());
        let directory = |name: &str| -> Arc<str> { format!("{base}/{name}").into() };
        let (leases, queue) = (directory(LEASES), directory(QUEUE));
        let mut place = None;
        for claim in self.claims.all(self.request.id()) {
            if claim.directory() == &queue && !claim.session().is_over() {
                place = Some(claim);
            } else {
                claim.undo().await?;
            }
        }
        if let Some(queue) = place {
            let protection_id = queue.protection_id().clone();
            let wanted = protection_id.leases(self.take, self.of);
            let paths = wanted.len();
            if let Some(reservation) = queue.session().reserve(longest_path(&leases, &wanted), paths) {
                let leases = Arc::new(NodeClaim::new(leases, protection_id, wanted, reservation));
                self.claims.add(self.request.id(), &leases);
                return Ok(Pair { leases, queue });
            }
            queue.undo().await?;
            self.claims.forget(self.request.id());
        }
        let protection_id = ProtectionId::of(random(Operation::Acquire)?);
        let wanted = protection_id.leases(self.take, self.of);
        // Besides its permits, its place in the queue and the one that it waits for.
        let (longest, paths) = (longest_path(&leases, &wanted), wanted.len() + 2);
        if longest.saturating_mul(paths) > MOST_BYTES {
            return Err(too_many(self.request.name(), self.take));
        }
        let reservation = backend.sessions.reserve(longest, paths, Operation::Acquire).await?;
        let beside = reservation.beside();
        let leases = Arc::new(NodeClaim::new(leases, protection_id.clone(), wanted, reservation));
        let queue = Arc::new(NodeClaim::new(
            queue,
            protection_id.clone(),
            protection_id.waiting(self.take, self.of),
            beside,
        ));
        // Before the first request: whatever becomes of it, the nodes can be found.
        self.claims.add(self.request.id(), &leases);
        self.claims.add(self.request.id(), &queue);
        Ok(Pair { leases, queue })
    }
}

fn too_many(name: &LockName, take: u32) -> LockError {
    LockError::new(ErrorKind::InvalidOption, Operation::Acquire)
        .on(name)
        .because(format!(
            "{take} permits at once are too many for a name of this length: a session cannot watch them"
        ))
        .remedy("take fewer permits at once, or shorten the name")
}

/// Whether the permits that an attempt wants are free.
pub(crate) struct FreePermits {
    claim: Arc<NodeClaim>,
    own: Names,
    name: LockName,
    of: u32,
    /// The first of those that are taken.
    first: Option<String>,
}

impl FreePermits {
    fn of(attempt: &PermitsAttempt<'_>, pair: &Pair, made: &Made) -> Self {
        Self {
            claim: Arc::clone(&pair.leases),
            own: Arc::clone(&made.names),
            name: attempt.request.name().clone(),
            of: attempt.of,
            first: None,
        }
    }

    /// Whether the permits are the attempt's now; none if one of its nodes is gone.
    async fn fits_now(&mut self) -> Result<Option<bool>, Failure> {
        let children = self.claim.session().list(self.claim.directory()).await?;
        self.fits(&children)
    }

    fn fits(&mut self, children: &[String]) -> Result<Option<bool>, Failure> {
        self.first = first_taken(children, &self.claim);
        does_fit(children, &self.own, self.of).map_err(|blocker| match blocker {
            NoRoom::OtherNumber(is) => Failure::Refused(LockError::other_permits(&self.name, self.of, is)),
            NoRoom::Newer(name) => Failure::Refused(newer(&name)),
        })
    }
}

/// The first of the permits that are taken, without those of the attempt itself.
pub(crate) fn first_taken(children: &[String], claim: &NodeClaim) -> Option<String> {
    let is_others = |name: &&String| read_lease(name).is_some() && !claim.protection_id().is_on(name);
    children.iter().filter(is_others).min_by_key(|name| read_lease(name)).cloned()
}

impl Blocker for FreePermits {
    /// Watches the permits that are taken, until the attempt's own are among the first.
    async fn watch_next(&mut self, _: &NodeClaim) -> Result<Next, Failure> {
        let listed = self.claim.session().list_and_watch(self.claim.directory()).await?;
        let Some((children, watching)) = listed else { return Ok(Next::OwnIsGone) };
        Ok(match self.fits(&children)? {
            None => Next::OwnIsGone,
            Some(true) => Next::None,
            Some(false) => Next::Watched(watching),
        })
    }
}

/// Why permits cannot be had at all.
#[derive(Debug, PartialEq)]
enum NoRoom {
    OtherNumber(u32),
    Newer(String),
}

/// Whether the own permits are among the first `of` of those that are taken; none if one of them is gone. What has no number, and
/// what has one at its end, counts as if it came before.
fn does_fit(children: &[String], own: &[String], of: u32) -> Result<Option<bool>, NoRoom> {
    let numbers: Vec<_> = own.iter().filter_map(|name| read_lease(name)).collect();
    if numbers.len() < own.len() || !own.iter().all(|name| children.contains(name)) {
        return Ok(None);
    }
    let last = numbers.into_iter().max().unwrap_or(AT_THE_END);
    let comes_before =
        |name: &&String| read_lease(name).is_none_or(|number| number <= last || number == AT_THE_END);
    let before: Vec<_> = children.iter().filter(comes_before).collect();
    if let Some(name) = before.iter().find(|name| is_newer(name)) {
        return Err(NoRoom::Newer((*name).clone()));
    }
    let mut numbers: Vec<_> =
        before.iter().filter_map(|name| Some((read_lease(name)?, number_of_permits(name)?.1))).collect();
    numbers.sort_unstable();
    match numbers.first() {
        Some((_, is)) if *is != of => Err(NoRoom::OtherNumber(*is)),
        // Who expects another number and is not the first is about to be refused, and to remove its nodes.
        _ if numbers.iter().any(|(_, is)| *is != of) => Ok(Some(false)),
        _ => Ok(Some(u32::try_from(before.len()).is_ok_and(|before| before <= of))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "_c_5b0e7b4c-1f5e-4c59-8a55-d2f0a7b1c9a0-";

    fn lease(of: &str, number: u32) -> String {
        format!("{MARK}{of}lease-{number:010}")
    }

    fn fits(others: &[String], own: &[String], of: u32) -> Result<Option<bool>, NoRoom> {
        does_fit(&[others, own].concat(), own, of)
    }

    #[test]
    fn only_what_came_before_and_is_still_there_takes_room() {
        let own = [lease("of3-", 4), lease("of3-", 5)];
        assert_eq!(fits(&[], &own, 3), Ok(Some(true)));
        assert_eq!(fits(&[lease("of3-", 1)], &own, 3), Ok(Some(true)));
        assert_eq!(fits(&[lease("of3-", 1), lease("of3-", 2)], &own, 3), Ok(Some(false)));
        // One that came later, whatever it expects, has still to see that these are here.
        assert_eq!(fits(&[lease("of3-", 1), lease("of5-", 6), lease("", 7)], &own, 3), Ok(Some(true)));
        // Curator's permits say nothing about their number.
        assert_eq!(fits(&[lease("", 1), lease("", 2)], &own, 3), Ok(Some(false)));
        assert_eq!(does_fit(&own[..1], &own, 3), Ok(None));
    }

    #[test]
    fn what_cannot_be_compared_takes_room() {
        let own = [lease("of3-", 4)];
        let others = ["note".to_owned(), "x-0000000009".to_owned(), "lease-2147483647".to_owned()];
        assert_eq!(fits(&others, &own, 3), Ok(Some(false)));
        assert_eq!(fits(&others[..2], &own, 3), Ok(Some(true)));
        let at_the_end = [lease("of3-", 2_147_483_647)];
        assert_eq!(
            fits(&[lease("of3-", 1), lease("of3-", 2), lease("of3-", 3)], &at_the_end, 3),
            Ok(Some(false))
        );
    }

    #[test]
    fn another_number_and_a_newer_layout_are_refused() {
        let own = [lease("of3-", 4)];
        assert_eq!(fits(&[lease("of5-", 1)], &own, 3), Err(NoRoom::OtherNumber(5)));
        assert_eq!(
            fits(&[lease("", 1), lease("of5-", 2), lease("of3-", 3)], &own, 3),
            Err(NoRoom::OtherNumber(5))
        );
        // The first one decides, and those that expect another number are about to go.
        assert_eq!(fits(&[lease("of3-", 1), lease("of5-", 2)], &own, 3), Ok(Some(false)));
        let newer = lease("v2-of3-", 1);
        assert_eq!(fits(std::slice::from_ref(&newer), &own, 3), Err(NoRoom::Newer(newer)));
    }
}
