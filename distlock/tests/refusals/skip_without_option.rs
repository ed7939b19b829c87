use distlock::{LockClient, LockError, locked};

#[locked("a", client = locks, wait = "0s", on_busy = skip)]
async fn returns_no_option(locks: &LockClient) -> Result<u32, LockError> {
    Ok(7)
}

fn main() {}
