//! Eight processes increment a number that only a lock behind Redis Sentinel or in a Redis Cluster protects, while primaries are
//! killed, stopped and deposed and hash slots move, one after the other, and some of the processes are cut off from all witnesses.

#[cfg(unix)]
#[path = "ensemble/connection.rs"]
mod connection;
#[cfg(unix)]
#[path = "failovers/mod.rs"]
mod failovers;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    failovers::main()
}

#[cfg(not(unix))]
fn main() {
    println!("the fixture for Redis needs a Unix system, so none of its tests has run");
}
