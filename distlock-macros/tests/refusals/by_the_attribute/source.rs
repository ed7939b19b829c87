use std::sync::Arc;

use distlock::{DistributedLock, LockClient, LockError, locked};

#[locked("a")]
async fn no_client() -> Result<(), LockError> {
    Ok(())
}

#[locked(client = locks, lock = lock)]
async fn client_and_lock(locks: &LockClient, lock: Arc<dyn DistributedLock>) -> Result<(), LockError> {
    Ok(())
}

#[locked("a", lock = lock)]
async fn name_and_lock(lock: Arc<dyn DistributedLock>) -> Result<(), LockError> {
    Ok(())
}

struct Service {
    locks: LockClient,
}

impl Service {
    #[locked(client = self.locks)]
    async fn method_without_name(&self) -> Result<(), LockError> {
        Ok(())
    }
}

fn main() {}
