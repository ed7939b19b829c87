use distlock::{LockClient, LockError, blocking, locked};

#[locked("a", client = locks)]
async fn blocking_client(locks: &blocking::LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked("a", client = locks)]
fn asynchronous_client(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked(lock = locks)]
async fn no_lock(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
