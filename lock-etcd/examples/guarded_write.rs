//! A write into etcd that etcd itself refuses when its writer has lost the lock, however late the write arrives.
//!
//! ```sh
//! ETCDCTL_ENDPOINTS=http://127.0.0.1:2379 cargo run -p lock-etcd --example guarded_write -- 127.0.0.1:2379
//! ```
//!
//! Here `etcdctl` sends the transaction. Whatever client a program has, the condition is the same: the revision that created the key of
//! the hold is the fencing token.

use std::io::Write;
use std::process::{Command, Stdio};

use lock_core::{ClientBuilder, Hold};
use lock_etcd::EtcdOptions;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = std::env::args().nth(1).ok_or("usage: guarded_write HOST:PORT")?;
    run(&server, &|| Command::new("etcdctl")).await
}

async fn run(server: &str, etcdctl: &dyn Fn() -> Command) -> Result<(), Failure> {
    let locks = EtcdOptions::at(server, "locks").connect(ClientBuilder::new()).await?;
    let lock = locks.mutex("orders-42")?;
    let paused = lock.acquire().await?;
    assert!(write(etcdctl(), paused.hold(), "orders/42", "packed")?);
    // This holder is paused for longer than its lease. Breaking the lock has the same effect.
    for holder in locks.status("orders-42").await?.holders {
        locks.break_holder("orders-42", &holder.id).await?;
    }

    let next = lock.acquire().await?;
    let written = write(etcdctl(), next.hold(), "orders/42", "sent")?;
    println!("the next holder writes: {written}");
    let overwritten = write(etcdctl(), paused.hold(), "orders/42", "cancelled")?;
    println!("the paused holder writes: {overwritten}");
    assert!(written && !overwritten);
    Ok(next.release().await?)
}

/// Writes in the same step in which etcd sees that the hold still has the lock. Returns whether it was written.
fn write(mut etcdctl: Command, hold: &Hold, key: &str, value: &str) -> Result<bool, Failure> {
    let own_key = format!("locks/{}/{}", hold.name(), hold.id());
    let token = hold.require_token()?;
    let transaction = format!("create(\"{own_key}\") = \"{token}\"\n\nput {key} {value}\n\n\n");
    let mut running = etcdctl.arg("txn").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    running.stdin.take().ok_or("no input")?.write_all(transaction.as_bytes())?;
    let output = running.wait_with_output()?;
    match output.stdout.split(|byte| *byte == b'\n').next() {
        Some(b"SUCCESS") => Ok(true),
        Some(b"FAILURE") => Ok(false),
        _ => Err(format!("etcdctl: {}", output.status).into()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    #[tokio::test(flavor = "multi_thread")]
    async fn etcd_refuses_a_late_write() {
        if let Some(reason) = test_servers::left_out("etcd") {
            return eprintln!("etcd: {reason}");
        }
        let server = test_servers::EtcdServer::start().await.unwrap();
        super::run(&server.address().to_string(), &|| server.etcdctl(&[])).await.unwrap();
        let written = server.command(&["get", "--print-value-only", "orders/42"]).await.unwrap();
        assert_eq!(written.trim(), "sent");
    }
}
