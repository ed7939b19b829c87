//! Runs the suite against a real ZooKeeper server with nodes that only their creator may access. A lost reply leaves
//! the connection silent.

#[cfg(unix)]
#[path = "harnesses/zookeeper.rs"]
mod zookeeper;

#[cfg(unix)]
conformance_tests::conformance_suite!(zookeeper::Closed);

#[cfg(not(unix))]
fn main() {
    println!("the fixture for ZooKeeper needs a Unix system, so none of its cases has run");
}
