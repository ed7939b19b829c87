//! Eight processes increment a number that only a lock behind Redis Sentinel protects, while primaries are killed, stopped and
//! deposed, one after the other, and sentinels are cut off from some of the processes.

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
