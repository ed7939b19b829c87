//! Runs the suite against a real MySQL 5.7, with tokens and holders in a table, with separate processes.

#[cfg(unix)]
#[path = "harnesses/mysql.rs"]
mod mysql;

#[cfg(unix)]
conformance_tests::conformance_suite!(mysql::MySql57Table);

#[cfg(not(unix))]
fn main() {
    println!("the fixture for MySQL needs a Unix system, so none of its cases has run");
}
