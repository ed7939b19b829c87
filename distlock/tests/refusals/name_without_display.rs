use distlock::{LockClient, LockError, locked};

struct Order;

#[locked("a/{order}", client = locks)]
async fn of_order(locks: &LockClient, order: &Order) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
