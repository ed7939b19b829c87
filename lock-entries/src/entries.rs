//! What a store can do.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    AcquireRequest, BackendContext, Capabilities, FencingToken, GroupId, HolderId, InspectRequest,
    LeaseState, LockError, LockName, Memo, NameRules, Participant, Recall, Remembered,
};

use crate::claim::{Claim, Claims, Failed};
use crate::record::Told;

/// A client of a store that orders the entries of sessions.
///
/// Its futures may be dropped at every await, and end by themselves if the store is silent.
pub trait Entries: Breaks + fmt::Debug {
    /// What the client knows of one attempt.
    type Claim: Claim;

    /// Returns what the store can do.
    fn capabilities(&self) -> &Capabilities;

    /// Returns what the core has given to the client.
    fn context(&self) -> &BackendContext;

    /// Makes one attempt, as [`Backend::acquire`](lock_core::Backend::acquire) has it: creates an entry, or finds that of an earlier
    /// call, and waits until nothing is in its way. Makes sure before a grant that the session lasts.
    fn acquire(
        &self,
        request: &AcquireRequest,
        claims: &Claims<Self::Claim>,
    ) -> impl Future<Output = Result<Option<Granted<Self::Claim>>, LockError>> + Send;

    /// Renews the session of this group, with the holds of these claims.
    fn renew(
        &self,
        group: GroupId,
        claims: &[&Self::Claim],
    ) -> impl Future<Output = Result<Vec<LeaseState>, LockError>> + Send;

    /// Remembers a slot, as [`Backend::remember`](lock_core::Backend::remember) has it.
    fn remember(
        &self,
        memo: &Memo,
        keep: Duration,
    ) -> impl Future<Output = Result<Remembered, LockError>> + Send;

    /// Looks a slot up, or forgets it, as [`Backend::recall`](lock_core::Backend::recall) has it.
    fn recall(
        &self,
        memo: &Memo,
        recall: Recall,
    ) -> impl Future<Output = Result<Option<Duration>, LockError>> + Send;

    /// Asks the store for a sign of life.
    fn ping(&self) -> impl Future<Output = Result<(), LockError>> + Send;

    /// Ends the sessions.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// What a client of such a store sees of all entries of a lock.
///
/// Its futures may be dropped at every await, and end by themselves if the store is silent.
pub trait Lines: Send + Sync + 'static {
    /// Why a request fails.
    type Failure: Failed;

    /// What it takes to find an entry again.
    type Key: Send + Sync;

    /// Reads the line of a lock, with what its entries say.
    fn line(
        &self,
        request: &InspectRequest,
    ) -> impl Future<Output = Result<Line<Self::Key>, Self::Failure>> + Send;

    /// Returns requests to inspect the locks and semaphores that the store knows, as
    /// [`Backend::list`](lock_core::Backend::list) has it.
    fn list(&self) -> impl Future<Output = Result<Vec<InspectRequest>, Self::Failure>> + Send;
}

/// How a client of such a store takes an entry from its holder.
///
/// Its futures may be dropped at every await, and all but [`Breaks::until_gone`] end by themselves if the store is silent.
pub trait Breaks: Lines {
    /// Gives an entry that is still as it was in a line this value, by which its holder learns that its hold is broken. From then on the
    /// key is that of the entry with the value.
    fn mark(
        &self,
        key: &mut Self::Key,
        value: &[u8],
    ) -> impl Future<Output = Result<Marked, Self::Failure>> + Send;

    /// Waits until an entry that was in a line is gone.
    fn until_gone(&self, key: &Self::Key) -> impl Future<Output = ()> + Send;

    /// Removes an entry that is still as it was in a line, or as it was marked, and no other. Returns whether it is gone; otherwise it has
    /// changed meanwhile.
    fn remove(&self, key: &Self::Key) -> impl Future<Output = Result<bool, Self::Failure>> + Send;
}

/// An attempt that has got the lock.
#[derive(Debug)]
pub struct Granted<C> {
    /// Its claim.
    pub claim: Arc<C>,
    /// The name by which others see its entry.
    pub name: HolderId,
    /// Its fencing token.
    pub token: Option<FencingToken>,
}

/// The entries of a lock, in their order.
#[derive(Debug)]
pub struct Line<K> {
    /// All of them.
    pub entries: Vec<Shown<K>>,
    /// How many of the first hold the lock.
    pub holding: usize,
}

impl<K> Line<K> {
    /// Returns the name that its user wrote, if an entry says it, the holders and the waiters.
    pub(crate) fn told(self) -> (Option<LockName>, Vec<Participant>, Vec<Participant>) {
        let name = self.entries.iter().find_map(|entry| LockName::new(entry.told.as_ref()?.name()?).ok());
        let mut entries = self.entries.into_iter().map(|entry| entry.participant);
        let holders = entries.by_ref().take(self.holding).collect();
        (name, holders, entries.map(|waiter| waiter.with_token(None)).collect())
    }

    /// Returns the request for a list, with what this line of its lock says; none if nothing holds the lock or waits. A name that an
    /// entry says counts if it is this one by the store's rules.
    pub fn seen(self, request: &InspectRequest, rules: &NameRules) -> Option<InspectRequest> {
        let (name, holders, waiters) = self.told();
        let name = name.filter(|name| rules.apply(name) == *request.physical());
        let name = name.unwrap_or_else(|| request.name().clone());
        let found = InspectRequest::new(name, request.physical().clone()).about(request.kind());
        (!holders.is_empty() || !waiters.is_empty()).then(|| found.seen(holders, waiters))
    }
}

/// An entry, as the store shows it.
#[derive(Debug)]
pub struct Shown<K> {
    /// The one whose entry it is.
    pub participant: Participant,
    /// What its value says; none if the client may not read it.
    pub told: Option<Told>,
    /// What it takes to find it again.
    pub key: K,
}

/// What became of the request to mark a hold as broken.
#[derive(Debug)]
pub enum Marked {
    /// Its holder learns of it.
    Told,
    /// The client may not write to it.
    Untold,
    /// The entry has changed or gone meanwhile.
    Changed,
}
