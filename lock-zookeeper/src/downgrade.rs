//! Makes an exclusive hold a shared one.
//!
//! One transaction writes to the hold's first node, creates a reader's node with the number of the writer's, and deletes the nodes of
//! the hold. The reader stands before all that have waited behind the writer, so no other writer comes between. The write tells
//! those who watch the node that there is a successor: without it they would learn of the deletion alone.
//!
//! **The reader keeps the writer's token.** Those that wait behind the writer have their tokens already, which follow the writer's, perhaps
//! without a gap: any higher token would be above one of theirs.

use std::sync::Arc;

use lock_core::{AcquireRequest, LockError, LossReason, Operation};
use lock_entries::{Claim, Claims, EntryLease, Failed, Granted, Outcome, Record, Replaced, rewrite};
use zookeeper_client::CreateMode;

use crate::backend::ZooKeeperEntries;
use crate::contender::{Accepted, Contender, ProtectionId, successor_of};
use crate::node::Made;
use crate::node_claim::{Names, NodeClaim};

impl ZooKeeperEntries {
    pub(crate) async fn make_shared(
        &self,
        held: &EntryLease<NodeClaim>,
        request: &AcquireRequest,
        claims: &Claims<NodeClaim>,
    ) -> Result<Result<Granted<NodeClaim>, LossReason>, LockError> {
        // From here on the end of the nodes is not a loss by itself.
        held.begin_release();
        let Some(claim) = claim(held, request, claims) else { return Ok(Err(LossReason::Deleted)) };
        let has_begun = claim.traces().has_left_something();
        let found = if has_begun { self.recipe.find(&claim).await? } else { None };
        if found.is_none()
            && let Some(reason) = self.change(held, request, &claim).await?
        {
            return Ok(Err(reason));
        }
        let Some(names) = claim.names() else { return Ok(Err(LossReason::Deleted)) };
        held.claim().gone();
        let made = Made { names, token: held.token(), are_alone: false };
        Ok(self.grant(&claim, &made, None).await?.ok_or(LossReason::Deleted))
    }

    /// Changes the nodes. Returns how the hold was lost, if it was.
    async fn change(
        &self,
        held: &EntryLease<NodeClaim>,
        request: &AcquireRequest,
        claim: &NodeClaim,
    ) -> Result<Option<LossReason>, LockError> {
        let Some(paths) = held.claim().paths() else { return Ok(Some(LossReason::Deleted)) };
        let Some(first) = paths.first() else { return Ok(Some(LossReason::Deleted)) };
        let successor: Names = claim.wanted().into();
        let data = Record::of(request, &self.context)?.with_token(held.token()).text()?;
        let options = CreateMode::Ephemeral.with_acls(self.recipe.access());
        let change = || async {
            claim.traces().about_to_create();
            let changed = claim.session().change(|writer| {
                // With the version, so that the mark of a break is not overwritten.
                writer.add_set_data(first, &[], Some(held.claim().version()))?;
                for path in claim.paths_of(&successor) {
                    writer.add_create(&path, &data, &options)?;
                }
                paths.iter().try_for_each(|path| writer.add_delete(path, None))
            });
            let Err((_, failure)) = changed.await else {
                claim.traces().made(Arc::clone(&successor));
                return Ok(Replaced::Done);
            };
            if failure.outcome() != Outcome::Unknown {
                claim.traces().created_nothing();
            }
            held.claim().found_instead(failure).await
        };
        rewrite(Operation::Downgrade, &data, change).await
    }
}

/// The claim of an earlier call for the same request, or a new one; none if nothing is left of the exclusive hold.
fn claim(
    held: &EntryLease<NodeClaim>,
    request: &AcquireRequest,
    claims: &Claims<NodeClaim>,
) -> Option<Arc<NodeClaim>> {
    if let Some(claim) = claims.living(request.id()) {
        return Some(claim);
    }
    let names = held.claim().names()?;
    let successor = successor_of(&Contender::read(names.last()?, Accepted::Curator)?)?;
    let protection_id = ProtectionId::read(&successor)?;
    let claim = Arc::new(held.claim().successor(protection_id, vec![successor]));
    claims.add(request.id(), &claim);
    Some(claim)
}
