//! Runs the suite against a real Redis server, with separate processes, as a user with the minimum permissions.

#[cfg(unix)]
#[path = "harnesses/redis.rs"]
mod redis;

#[cfg(unix)]
conformance_tests::conformance_suite!(redis::Messages);

#[cfg(not(unix))]
fn main() {
    println!("the fixture for Redis needs a Unix system, so none of its cases has run");
}
