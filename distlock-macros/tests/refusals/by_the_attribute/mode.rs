use std::sync::Arc;

use distlock::{DistributedLock, LockClient, LockError, locked};

#[locked("a", client = locks, mode = shared)]
async fn unknown(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked(lock = lock, mode = read)]
async fn given(lock: &Arc<dyn DistributedLock>) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
