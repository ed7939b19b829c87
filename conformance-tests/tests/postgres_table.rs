//! Runs the suite against a real PostgreSQL, with tokens in a table, with separate processes.

#[cfg(unix)]
#[path = "harnesses/postgres.rs"]
mod postgres;

#[cfg(unix)]
conformance_tests::conformance_suite!(postgres::PostgresTable);

#[cfg(not(unix))]
fn main() {
    println!("the fixture for PostgreSQL needs a Unix system, so none of its cases has run");
}
