//! Runs the suite against a Redis server that refuses to send messages: waiters have to poll.

#[cfg(unix)]
#[path = "harnesses/redis.rs"]
mod redis;

#[cfg(unix)]
conformance_tests::conformance_suite!(redis::Polling);

#[cfg(not(unix))]
fn main() {
    println!("the fixture for Redis needs a Unix system, so none of its cases has run");
}
