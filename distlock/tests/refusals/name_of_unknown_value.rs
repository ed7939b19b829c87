use distlock::{LockClient, LockError, locked};

struct Order {
    id: u32,
}

#[locked("a/{order.number}", client = locks)]
async fn no_field(locks: &LockClient, order: &Order) -> Result<u32, LockError> {
    Ok(order.id)
}

#[locked("a/{id}", client = locks)]
async fn no_argument(locks: &LockClient, order: &Order) -> Result<u32, LockError> {
    Ok(order.id)
}

fn main() {}
