use distlock::{LockClient, locked};

struct PayError;

#[locked("a", client = locks)]
async fn pay(locks: &LockClient) -> Result<(), PayError> {
    Err(PayError)
}

fn main() {}
