//! `cargo xtask servers NAME`: a server for experiments. An example of `test-servers` starts it, so that this crate still
//! compiles fast.

use crate::context::Context;
use crate::failure::Failure;

pub(crate) fn run(arguments: &[String], context: &Context) -> Result<(), Failure> {
    let example = ["run", "--quiet", "--package", "test-servers", "--example", "servers", "--"];
    let arguments: Vec<&str> = example.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    // Cargo may wait for another one first, and says nothing with --quiet.
    context.console.status("building the servers' fixture, which takes minutes the first time");
    context.console.still("building the servers' fixture, which takes minutes the first time");
    context.cargo(&arguments).take_over()
}
