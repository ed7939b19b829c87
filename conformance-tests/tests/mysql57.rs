//! Runs the suite against a real MySQL 5.7, as a user without any privileges, with separate processes.

#[cfg(unix)]
#[path = "harnesses/mysql.rs"]
mod mysql;

#[cfg(unix)]
conformance_tests::conformance_suite!(mysql::MySql57);

#[cfg(not(unix))]
fn main() {
    println!("the fixture for MySQL needs a Unix system, so none of its cases has run");
}
