//! Makes an exclusive hold a shared one.
//!
//! One transaction writes to the hold's first node, creates a reader's node with the number of the writer's, and deletes the nodes of
//! the hold. The reader stands before all that have waited behind the writer, so no other writer comes between. The write tells
//! those who watch the node that there is a successor: without it they would learn of the deletion alone.
//!
//! **The reader keeps the writer's token.** Those that wait behind the writer have their tokens already, which follow the writer's, perhaps
//! without a gap: any higher token would be above one of theirs.

use std::sync::Arc;

use lock_core::{AcquireRequest, Downgraded, LockError, LossReason, Operation};
use zookeeper_client::{CreateMode, Error, MultiReadResult};

use crate::attempt::Attempt;
use crate::backend::{MOST_ROUNDS, ZooKeeperBackend};
use crate::contender::{Accepted, Contender, ProtectionId, successor_of};
use crate::failure::{Failure, Outcome, nonsense};
use crate::hold::Lease;
use crate::node::Made;
use crate::node_claim::{Names, NodeClaim};
use crate::record::{is_broken, with_token};

/// What became of the transaction.
enum Changed {
    Shared(Made),
    Lost(LossReason),
}

pub(crate) async fn downgrade(
    backend: &ZooKeeperBackend,
    lease: &Lease,
    request: &AcquireRequest,
) -> Result<Downgraded<Lease>, LockError> {
    let Some(claim) = claim(backend, lease, request) else {
        return Ok(Downgraded::WasLost(LossReason::Deleted));
    };
    // From here on the end of the nodes is not a loss by itself.
    lease.begin_release();
    let found = if claim.has_left_something() { backend.recipe.find(&claim).await? } else { None };
    let changed = match found {
        Some((made, _)) => Changed::Shared(Made { token: lease.token, ..made }),
        None => change(backend, lease, request, &claim).await?,
    };
    let reason = match changed {
        Changed::Shared(made) => {
            lease.claim.gone();
            match Attempt::new(backend, request).grant(&claim, &made, None).await? {
                Some(grant) => return Ok(Downgraded::Shared(grant)),
                None => LossReason::Deleted,
            }
        }
        Changed::Lost(reason) => reason,
    };
    backend.claims.forget(request.id());
    Ok(Downgraded::WasLost(reason))
}

/// The claim of an earlier call for the same request, or a new one; none if nothing is left of the exclusive hold.
fn claim(backend: &ZooKeeperBackend, lease: &Lease, request: &AcquireRequest) -> Option<Arc<NodeClaim>> {
    if let Some(claim) = backend.claims.living(request.id()) {
        return Some(claim);
    }
    let names = lease.claim.names()?;
    let successor = successor_of(&Contender::read(names.last()?, Accepted::Curator)?)?;
    let protection_id = ProtectionId::read(&successor)?;
    let claim = Arc::new(lease.claim.successor(protection_id, vec![successor]));
    backend.claims.add(request.id(), &claim);
    Some(claim)
}

async fn change(
    backend: &ZooKeeperBackend,
    lease: &Lease,
    request: &AcquireRequest,
    claim: &NodeClaim,
) -> Result<Changed, LockError> {
    let Some(names) = lease.claim.names() else { return Ok(Changed::Lost(LossReason::Deleted)) };
    let paths = lease.claim.paths_of(&names);
    let Some(first) = paths.first() else { return Ok(Changed::Lost(LossReason::Deleted)) };
    let successor: Names = claim.wanted().into();
    let data = with_token(&backend.data_of(request.holder())?, lease.token);
    let options = CreateMode::Ephemeral.with_acls(backend.recipe.access());
    let session = claim.session();
    let mut version = 0;
    for _ in 0..MOST_ROUNDS {
        claim.about_to_create();
        let changed = session.change(|writer| {
            // With the version, so that the mark of a break is not overwritten.
            writer.add_set_data(first, &[], Some(version))?;
            for path in claim.paths_of(&successor) {
                writer.add_create(&path, &data, &options)?;
            }
            paths.iter().try_for_each(|path| writer.add_delete(path, None))
        });
        let Err((index, failure)) = changed.await else {
            claim.made(Arc::clone(&successor));
            return Ok(Changed::Shared(Made { names: successor, token: lease.token, are_alone: false }));
        };
        if failure.outcome() != Outcome::Unknown {
            claim.created_nothing();
        }
        if failure.is(&Error::NoNode) {
            return Ok(Changed::Lost(LossReason::Deleted));
        }
        if failure.outcome() == Outcome::EndsWithSession {
            return Ok(Changed::Lost(LossReason::SessionClosed));
        }
        let explained = |failure: Failure| failure.explain(Operation::Downgrade);
        if index > 0 || !failure.is(&Error::BadVersion) {
            return Err(explained(failure));
        }
        match session.read(std::slice::from_ref(first)).await.map_err(explained)?.pop() {
            Some(MultiReadResult::Data { data, .. }) if is_broken(&data) => {
                return Ok(Changed::Lost(LossReason::Broken));
            }
            Some(MultiReadResult::Data { stat, .. }) => version = stat.version,
            Some(MultiReadResult::Error { err: Error::NoNode }) => {
                return Ok(Changed::Lost(LossReason::Deleted));
            }
            _ => return Err(nonsense(Operation::Downgrade, "an unexpected result")),
        }
    }
    Err(nonsense(Operation::Downgrade, "another program changes the node again and again"))
}
