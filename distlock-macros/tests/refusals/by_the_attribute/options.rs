use distlock::{LockClient, LockError, locked};

#[locked("a", client = locks, waits = "2s")]
async fn unknown(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked("a", client = locks, wait = "2s", wait = "3s")]
async fn twice(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked("a", client = locks, "b")]
async fn no_option(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked(42, client = locks)]
async fn no_string(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked("a" client = locks)]
async fn no_comma(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
