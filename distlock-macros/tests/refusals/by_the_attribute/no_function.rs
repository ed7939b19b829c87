use distlock::{LockClient, LockError, locked};

#[locked("a", client = locks)]
struct Order;

trait Till {
    #[locked("a", client = locks)]
    async fn no_body(&self, locks: &LockClient) -> Result<(), LockError>;
}

#[locked("a", client = locks)]
const fn constant(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
