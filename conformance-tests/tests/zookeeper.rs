//! Runs the suite against a real ZooKeeper server, with separate processes. A reply is lost together with its
//! connection.

#[cfg(unix)]
#[path = "harnesses/zookeeper.rs"]
mod zookeeper;

#[cfg(unix)]
conformance_tests::conformance_suite!(zookeeper::Open);

#[cfg(not(unix))]
fn main() {
    println!("the fixture for ZooKeeper needs a Unix system, so none of its cases has run");
}
