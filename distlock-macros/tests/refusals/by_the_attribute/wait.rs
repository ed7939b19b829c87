use distlock::{LockClient, LockError, locked};

#[locked("a", client = locks, wait = "2 fortnights")]
async fn no_unit(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked("a", client = locks, wait = 2)]
async fn number(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked("a", client = locks, wait = "2")]
async fn bare_number(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
