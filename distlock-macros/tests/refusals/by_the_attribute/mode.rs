use distlock::{LockClient, LockError, locked};

#[locked("a", client = locks, mode = read)]
async fn reader(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked("a", client = locks, mode = write)]
async fn writer(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked("a", client = locks, mode = shared)]
async fn unknown(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
