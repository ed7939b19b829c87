use distlock::{LockClient, LockError, locked};

#[locked("a", client = locks, hold = id)]
async fn hides_an_argument(locks: &LockClient, id: u32) -> Result<u32, LockError> {
    Ok(id)
}

fn main() {}
