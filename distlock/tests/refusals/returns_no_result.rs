use distlock::{LockClient, locked};

#[locked("a", client = locks)]
async fn returns_a_number(locks: &LockClient) -> u32 {
    7
}

fn main() {}
