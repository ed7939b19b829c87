//! `cargo xtask servers redis`, or `zookeeper`, `mysql`, `mariadb`: a server to try things with. What starts it is an example
//! of `conformance-tests`, which has to start servers anyway, so that this crate compiles as fast as before.

use std::process::ExitCode;

use crate::context::Context;

pub(crate) fn run(arguments: &[String], context: &Context) -> ExitCode {
    let example = [
        "run",
        "--quiet",
        "--package",
        "conformance-tests",
        "--features",
        "servers",
        "--example",
        "servers",
        "--",
    ];
    let arguments: Vec<&str> = example.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let failure = context.cargo(&arguments).replace_this_program();
    context.console.error(&failure.to_string());
    ExitCode::FAILURE
}
