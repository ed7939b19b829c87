//! The steps, in the order in which they run: what fails fast comes first.

mod deny;
mod disk;
mod features;
mod install;
mod package;
mod readme;

use crate::context::Context;
use crate::failure::Failure;
use crate::{suite, tidy};

pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) run: fn(&Context) -> Result<(), Failure>,
}

pub(crate) const ALL: &[Step] = &[
    Step {
        name: "install",
        summary: "what the checks need is on this machine, or is installed",
        run: install::run,
    },
    Step { name: "fmt", summary: "the code is formatted", run: fmt },
    Step { name: "tidy", summary: "the rules of this workspace that no compiler knows", run: tidy::run },
    Step { name: "lint", summary: "clippy on every target, warnings are errors", run: lint },
    Step { name: "docs", summary: "the API documentation builds, warnings are errors", run: docs },
    Step {
        name: "package",
        summary: "each published crate can be packed, and lacks nothing",
        run: package::run,
    },
    Step { name: "readme", summary: "the README's first command does what it says", run: readme::run },
    Step { name: "suite", summary: "every test of the workspace, doctests included", run: suite::run },
    Step {
        name: "features",
        summary: "each feature of the facade alone, and nothing of another in it",
        run: features::run,
    },
    Step {
        name: "deny",
        summary: "licences, bans, sources and advisories of the dependencies",
        run: deny::run,
    },
];

fn fmt(context: &Context) -> Result<(), Failure> {
    context.cargo(&["fmt", "--all", "--check"]).run()
}

fn lint(context: &Context) -> Result<(), Failure> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
    context.cargo(&arguments).run()
}

fn docs(context: &Context) -> Result<(), Failure> {
    let arguments = ["doc", "--workspace", "--all-features", "--no-deps"];
    context.cargo(&arguments).with_variable("RUSTDOCFLAGS", "-D warnings").run()
}
