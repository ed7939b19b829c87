use distlock::{LockClient, LockError, locked};

#[locked("a", client = locks)]
async fn wrong_value(locks: &LockClient) -> Result<u32, LockError> {
    let value: u32 = "seven";
    Ok(value)
}

#[locked("a", client = locks)]
async fn wrong_return(locks: &LockClient, stop: bool) -> Result<u32, LockError> {
    if stop {
        return "stopped";
    }
    Ok(7)
}

fn main() {}
