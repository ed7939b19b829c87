//! Runs the suite against the file backend, with separate processes.

#[cfg(unix)]
#[path = "harnesses/file.rs"]
mod file;

#[cfg(unix)]
conformance_tests::conformance_suite!(file::Folder);

#[cfg(not(unix))]
fn main() {
    println!("the file backend needs a Unix system, so none of its cases has run");
}
