use distlock::{LockClient, LockError, blocking, locked};

#[locked("a", client = locks)]
async fn asynchronous(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked("a/{order}", client = locks, wait = "0s", on_busy = skip)]
fn blocks(locks: &blocking::LockClient, order: u32) -> Result<Option<u32>, LockError> {
    Ok(Some(order))
}

fn main() {}
