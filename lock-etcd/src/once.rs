//! Slots of locks that are remembered, beyond the end of every client.
//!
//! A slot is a key with a lease of its own, `<prefix>/~remembered/<hash>`, which the server ends when the slot may be forgotten. It
//! counts whole seconds, two at least, and begins anew when it restarts or gets another leader: a slot may be remembered for longer
//! than asked, never shorter.

use std::time::Duration;

use lock_core::{Memo, Operation, Recall, Remembered};
use serde::Serialize;

use crate::backend::EtcdEntries;
use crate::failure::{Failure, nonsense};
use crate::messages::{Compare, LeaseGrant, LeaseRevoke, LeaseTimeToLive, Put, Range, Txn};
use crate::session::{seconds, whole_seconds};

/// How often the slot may be forgotten while the client looks at it.
const MOST_ROUNDS: usize = 8;

/// What a slot says, for operators.
#[derive(Serialize)]
struct Slot<'a> {
    lock: &'a str,
    slot: &'a str,
}

impl EtcdEntries {
    pub(crate) async fn remembered(&self, memo: &Memo, keep: Duration) -> Result<Remembered, Failure> {
        self.link.soon().await?;
        let key = self.link.options.special("remembered", &memo.key());
        let slot = Slot { lock: memo.name().as_str(), slot: memo.slot() };
        let value = serde_json::to_vec(&slot).unwrap_or_default();
        let read = Range::of(&key);
        for _ in 0..MOST_ROUNDS {
            // Mostly it is remembered already; then nothing is written.
            if let Some((_, left)) = self.find(read.clone()).await? {
                return Ok(Remembered::Already { remaining: left.min(keep) });
            }
            let clock = self.link.context.clock();
            let sent = clock.now();
            let lease = self.link.ask(LeaseGrant { seconds: whole_seconds(keep) }).await?;
            let put = Put { key: key.clone(), value: value.clone(), lease: lease.id, keeps_lease: false };
            let conditions = vec![Compare::created_by(&key, 0)];
            let txn = Txn { conditions, then: vec![put.into()], ..Txn::default() };
            if !self.link.ask(txn).await?.held {
                // Without it the lease ends by itself.
                let _ = self.link.ask(LeaseRevoke { id: lease.id }).await;
                continue;
            }
            // The lease is older than the slot, and begins anew if it could end too early.
            let lasts = sent.plus(seconds(lease.ttl)) >= clock.now().plus(keep);
            if lasts || self.link.renew(lease.id).await?.0 {
                return Ok(Remembered::Now);
            }
            return Err(Failure::Refused(nonsense(Operation::Remember, "it has forgotten the slot at once")));
        }
        let busy = nonsense(Operation::Remember, "other clients change the slot again and again");
        Err(Failure::Refused(busy))
    }

    /// A slot goes with its lease.
    pub(crate) async fn recalled(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, Failure> {
        self.link.soon().await?;
        let key = self.link.options.special("remembered", &memo.key());
        let Some((lease, left)) = self.find(Range::of(&key)).await? else {
            return Ok(None);
        };
        if recall == Recall::Forget {
            match self.link.ask(LeaseRevoke { id: lease }).await {
                // It has ended meanwhile.
                Err(Failure::LeaseOver) => return Ok(None),
                Err(failure) => return Err(failure),
                Ok(_) => {}
            }
        }
        Ok(Some(left))
    }

    /// The lease of a slot, and how long it lasts.
    async fn find(&self, read: Range) -> Result<Option<(i64, Duration)>, Failure> {
        let Some(found) = self.link.ask(read).await?.found.pop() else { return Ok(None) };
        // The server rounds down, and the end of a time that is over takes it a moment.
        let left = self.link.ask(LeaseTimeToLive { id: found.lease }).await?.ttl.max(1);
        Ok(Some((found.lease, seconds(left))))
    }
}
