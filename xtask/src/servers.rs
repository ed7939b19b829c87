//! `cargo xtask servers NAME`: a server for experiments. An example of `test-servers` starts it, so that this crate still
//! compiles fast.

use std::process::ExitCode;

use crate::context::Context;

pub(crate) fn run(arguments: &[String], context: &Context) -> ExitCode {
    let example = ["run", "--quiet", "--package", "test-servers", "--example", "servers", "--"];
    let arguments: Vec<&str> = example.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    // Cargo may wait for another one first, and says nothing with --quiet.
    context.console.status("building the servers' fixture, which takes minutes the first time");
    context.console.still("building the servers' fixture, which takes minutes the first time");
    let failure = context.cargo(&arguments).replace_this_program();
    context.console.error(&failure.to_string());
    ExitCode::FAILURE
}
