//! The development tasks of this workspace: `cargo xtask test` proves that all of it works, `cargo xtask test --all`
//! checks everything that a change has to pass, and each step can be run by itself. `cargo xtask` prints the list.
//!
//! A step is one row in [`steps::ALL`]. The first one that fails ends the run, with the command that repeats it.
#![forbid(unsafe_code)]

mod console;
mod context;
mod failure;
mod mutants;
mod process;
mod runner;
mod servers;
mod steps;
mod suite;
mod tidy;
mod tier;

use std::process::ExitCode;

use console::Console;
use context::Context;
use runner::Chosen;
use tier::Tier;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let console = Console::new();
    let result = match runner::choose(&arguments) {
        Chosen::Help => {
            println!("{}", runner::help());
            Ok(())
        }
        Chosen::Unknown(what) => {
            console.error(&format!("there is no step {what:?}"));
            eprintln!("\n{}", runner::help());
            return ExitCode::from(64);
        }
        Chosen::Steps(steps, tier) => runner::run(&steps, &Context::new(console, tier)),
        Chosen::Mutants(arguments) => mutants::run(&arguments, &Context::new(console, Tier::Default)),
        Chosen::Soak(arguments) => return suite::soak::run(&arguments, &Context::new(console, Tier::All)),
        Chosen::Servers(arguments) => servers::run(&arguments, &Context::new(console, Tier::Default)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            console.error(&failure.to_string());
            if let Some(command_line) = failure.repeat() {
                eprintln!("To repeat this command:  {command_line}");
            }
            ExitCode::FAILURE
        }
    }
}
