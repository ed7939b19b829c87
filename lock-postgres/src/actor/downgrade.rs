//! A writer that becomes a reader.

use lock_core::{AttemptId, FencingToken, LockError, Operation};
use lock_sql::{Broken, Failure};
use tokio::sync::oneshot;

use super::{Actor, read};
use crate::claim::{Claim, Has};
use crate::dialect::Taken;
use crate::failure::shared_session;
use crate::options::TokenSource;
use crate::statement::{self, Answered};

impl Actor {
    /// Makes an exclusive hold a shared one. A statement that fails may have done so all the same; it is sent again until its
    /// answer says so.
    pub(super) async fn downgrade(
        &mut self,
        former: AttemptId,
        claim: Claim,
        answer: oneshot::Sender<Result<Taken, LockError>>,
    ) -> Result<(), Broken> {
        let taken = match self.on.held.get_mut(&claim.key) {
            Some(held) if held.id == claim.id => Ok(()),
            Some(held) if held.id == former => {
                held.has = Has::Either;
                self.share(&claim).await
            }
            _ => {
                let _ = answer.send(Ok(Taken::Interrupted));
                return Ok(());
            }
        };
        let granted = match taken {
            Ok(()) => self.granted_reader(&claim).await,
            Err(failure) => Err(failure),
        };
        match granted {
            Err(Failure::Broken(error)) => Err(Broken(error)),
            granted => {
                // If the caller has gone, it asks again.
                let _ = answer.send(granted.map_err(Failure::into_error));
                Ok(())
            }
        }
    }

    async fn share(&mut self, claim: &Claim) -> Result<(), Failure> {
        let Claim { key, id, .. } = *claim;
        let (fencing, tag) = (self.on.settings.dialect.fencing, self.on.session.own.tag);
        let limit = self.on.settings.request_timeout / 2;
        let statement = statement::downgrade(key, fencing, tag, limit);
        let answer = self.on.ask(Operation::Downgrade, statement).await?;
        let Answered::Granted(token, _) = read(&answer)? else {
            return Err(match self.explain_elsewhere().await {
                Err(failure) => failure,
                Ok(_) => Failure::Broken(shared_session(Operation::Downgrade)),
            });
        };
        if let Some(held) = self.on.held.get_mut(&key) {
            held.id = id;
            held.has = Has::Shared;
            held.token = fencing.is_in_grant().then(|| FencingToken::new(token));
        }
        Ok(())
    }

    async fn granted_reader(&mut self, claim: &Claim) -> Result<Taken, Failure> {
        let known = self.on.held.get(&claim.key).and_then(|held| held.token);
        let token = match (self.on.settings.dialect.fencing, known) {
            (TokenSource::Table, None) => Some(FencingToken::new(self.mint(claim).await?)),
            (_, known) => known,
        };
        if let Some(held) = self.on.held.get_mut(&claim.key) {
            held.token = token;
        }
        Ok(Taken::Granted { token, anchor: self.on.heard })
    }
}
