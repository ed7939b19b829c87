use distlock::{LockClient, locked};

#[locked("a", client = locks)]
async fn returns_nothing(locks: &LockClient) {}

fn main() {}
