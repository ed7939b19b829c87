//! Callers that wait for a lock that they hold themselves.

use crate::api::scope;
use crate::policy::acquire::Itself;
use crate::policy::hold::Hold;
use crate::types::Owner;

/// Returns how a caller that waits for this holder waits for itself, if it does.
pub(super) fn around(holder: Owner, hold: &Hold) -> Option<Itself> {
    // Code here can enter again what that owner holds.
    if scope::owner_that(|around| around == holder).is_some() {
        return Some(Itself::Owner);
    }
    let acquired_in = hold.0.acquired_in.get().copied();
    (acquired_in.is_some() && acquired_in == scope::outside_of_scopes()).then_some(Itself::Task)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::api::builder::ClientBuilder;
    use crate::api::options::LockOptions;
    use crate::api::tests::fake::Fake;
    use crate::spi::Mode;

    #[tokio::test]
    async fn a_grant_that_comes_while_its_waiter_looks_round_is_not_itself_waited_for() {
        let locks = Fake::default().client(ClientBuilder::new());
        let lock = locks.mutex("orders/42").unwrap();
        lock.lock().await.unwrap();
        let lock = locks.lock_in(Mode::Exclusive, "orders/42", LockOptions::new()).unwrap().of_client;
        let waits = |owner| lock.look(|local| local.waits_for(owner, Mode::Exclusive, around));
        assert!(waits(Owner::current().unwrap()).is_none());
        assert!(matches!(waits(Owner::new()), Some(Itself::Owner)));
    }
}
