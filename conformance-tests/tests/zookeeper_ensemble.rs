//! Eight processes increment a number that only a lock in ZooKeeper protects, while the servers of an ensemble are
//! killed, stopped and separated from each other.

#[cfg(unix)]
#[path = "ensemble/mod.rs"]
mod ensemble;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    ensemble::main()
}

#[cfg(not(unix))]
fn main() {
    println!("the fixture for ZooKeeper needs a Unix system, so none of its tests has run");
}
