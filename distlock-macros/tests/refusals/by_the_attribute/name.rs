use distlock::{LockClient, LockError, locked};

#[locked("", client = locks)]
async fn empty(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked("a/{id", client = locks)]
async fn open(locks: &LockClient, _id: u32) -> Result<(), LockError> {
    Ok(())
}

#[locked("a/id}", client = locks)]
async fn closed(locks: &LockClient, _id: u32) -> Result<(), LockError> {
    Ok(())
}

#[locked("a/{}", client = locks)]
async fn nothing(locks: &LockClient, _id: u32) -> Result<(), LockError> {
    Ok(())
}

#[locked("a/{id:04}", client = locks)]
async fn format(locks: &LockClient, _id: u32) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
