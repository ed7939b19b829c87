use distlock::{LockClient, LockError, locked};

#[locked("a", client = locks, wait = "0s", on_busy = ignore)]
async fn unknown(locks: &LockClient) -> Result<Option<()>, LockError> {
    Ok(Some(()))
}

#[locked("a", client = locks, on_busy = skip)]
async fn never_skips(locks: &LockClient) -> Result<Option<()>, LockError> {
    Ok(Some(()))
}

fn main() {}
