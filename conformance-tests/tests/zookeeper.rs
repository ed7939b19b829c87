//! The suite against a real ZooKeeper server, with processes of their own. A reply that is lost ends the connection.

#[cfg(unix)]
#[path = "harnesses/zookeeper.rs"]
mod zookeeper;

#[cfg(unix)]
conformance_tests::conformance_suite!(zookeeper::Open);

#[cfg(not(unix))]
fn main() {
    println!("the fixture for ZooKeeper needs a Unix system, so none of its cases has run");
}
