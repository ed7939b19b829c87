//! Which locks of a server are in use.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::api::client::LockClient;
use crate::policy::context::ClientContext;
use crate::runtime::no_answer;
use crate::spi::InspectRequest;
use crate::types::{LockError, LockList, LockName, LockStatus, NameRules, Operation};

#[cfg(doc)]
use crate::types::{capabilities::Capabilities, error::ErrorKind};

/// How many locks of a list are inspected at the same time.
const TOGETHER: usize = 32;

/// Inspects the locks that the server knows, and whose names may begin so.
async fn inspect_all(context: Arc<ClientContext>, prefix: Arc<str>) -> Result<LockList, LockError> {
    let rules = context.backend.capabilities().names;
    let is_wanted = |request: &InspectRequest| rules.may_begin(&request.physical, &prefix);
    let mut requests = context.backend.list().await?.into_iter().filter(is_wanted);
    let (mut asked, mut found) = (JoinSet::new(), LockList::default());
    loop {
        for request in requests.by_ref().take(TOGETHER - asked.len()) {
            asked.spawn(inspect(Arc::clone(&context), request));
        }
        match asked.join_next().await {
            None => return Ok(found),
            Some(Ok(Ok(lock))) if lock.holders.is_empty() && lock.waiters.is_empty() => {}
            Some(Ok(Ok(lock))) => found.locks.push(lock),
            Some(Ok(Err(error))) => found.failures.push(error),
            Some(Err(error)) => return Err(no_answer(Operation::Inspect, error)),
        }
    }
}

async fn inspect(context: Arc<ClientContext>, mut request: InspectRequest) -> Result<LockStatus, LockError> {
    if let Some(seen) = request.seen.take() {
        return Ok(seen);
    }
    let about = |error: LockError| error.on(request.name()).of(request.kind()).at(&context.server);
    let mut lock = context.backend.inspect(&request).await.map_err(about)?;
    lock.name = name_of(lock.name, &request, context.backend.capabilities().names);
    Ok(lock)
}

/// The name that a server tells, if that is the name of the lock that was asked for: it comes from other clients.
fn name_of(told: LockName, request: &InspectRequest, rules: NameRules) -> LockName {
    if rules.apply(&told) == request.physical { told } else { request.name.clone() }
}

impl LockClient {
    /// Returns the locks and semaphores that are held or waited for now, in the order of their names; of a [scoped](Self::scoped)
    /// client, those whose names begin with its prefix. Each is inspected by itself, so that the list is no picture of one moment.
    ///
    /// A name that the server does not accept has another one there. The list has the name that its user wrote if the holder or a waiter
    /// tells the server; otherwise the one at the server.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// let found = locks.list().await?;
    /// assert_eq!(found.locks[0].name.as_str(), "orders/42");
    /// guard.release().await?;
    /// assert!(locks.list().await?.locks.is_empty());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the backend [cannot list](Capabilities::listing) locks; [`ErrorKind::Unreachable`].
    ///
    /// # Cancel safety
    /// The future may be dropped at any time; it changes nothing.
    pub async fn list(&self) -> Result<LockList, LockError> {
        let prefix = Arc::clone(&self.prefix);
        let mut found = self.on_engine(Operation::Inspect, |context| inspect_all(context, prefix)).await?;
        found.locks.retain(|lock| lock.name.as_str().starts_with(&*self.prefix));
        found.locks.sort_by(|one, other| one.name.cmp(&other.name));
        found.failures.sort_by(|one, other| one.name().cmp(&other.name()));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{CharacterSet, LockKind};

    #[test]
    fn a_name_that_a_client_tells_counts_only_for_its_own_lock() {
        let rules = NameRules::new(CharacterSet::PORTABLE, 200);
        let [ours, other] = ["orders/42", "orders/43"].map(|name| LockName::new(name).unwrap());
        let physical = rules.apply(&ours);
        let found = InspectRequest::found(physical.as_str(), LockKind::Lock).unwrap();
        assert_eq!(name_of(ours.clone(), &found, rules), ours);
        for told in [other, found.name().clone()] {
            assert_eq!(name_of(told, &found, rules).as_str(), physical.as_str());
        }
    }
}
