//! The steps, in the order in which they run: what fails fast comes first.

mod deny;
mod features;
mod install;
mod outside;
mod package;
mod readme;

use crate::context::Context;
use crate::failure::Failure;
use crate::tier::Tier;
use crate::{suite, tidy};

pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) summary: &'static str,
    /// The smallest tier that runs it.
    pub(crate) tier: Tier,
    pub(crate) run: Run,
}

type Run = fn(&Context) -> Result<(), Failure>;

const fn step(tier: Tier, name: &'static str, run: Run, summary: &'static str) -> Step {
    Step { name, summary, tier, run }
}

pub(crate) const ALL: &[Step] = &[
    step(Tier::Default, "install", install::run, "what the checks need is on this machine, or is installed"),
    step(Tier::Default, "fmt", fmt, "the code is formatted"),
    step(Tier::Default, "tidy", tidy::run, "the rules of this workspace that no compiler knows"),
    step(Tier::Default, "lint", lint, "clippy on every target, warnings are errors"),
    step(Tier::All, "docs", docs, "the API documentation builds, warnings are errors"),
    step(Tier::All, "package", package::run, "each published crate can be packed, and lacks nothing"),
    step(Tier::All, "readme", readme::run, "the README's first command does what it says"),
    step(Tier::Default, "suite", suite::run, "every test of the workspace, doctests included"),
    step(
        Tier::All,
        "features",
        features::run,
        "each feature of the facade alone, and nothing of another in it",
    ),
    step(Tier::All, "outside", outside::run, "a backend outside of the workspace passes the suite"),
    step(Tier::All, "deny", deny::run, "licences, bans, sources and advisories of the dependencies"),
];

/// Returns the steps of a tier, in their order.
pub(crate) fn of(tier: Tier) -> impl Iterator<Item = &'static Step> {
    ALL.iter().filter(move |step| step.tier == Tier::Default || tier == Tier::All)
}

fn fmt(context: &Context) -> Result<(), Failure> {
    context.cargo(&["fmt", "--all", "--check"]).run()
}

fn lint(context: &Context) -> Result<(), Failure> {
    let all = ["--all-targets", "--all-features", "--", "-D", "warnings"];
    context.cargo(&[&["clippy"], context.tier.packages(), &all].concat()).run()
}

fn docs(context: &Context) -> Result<(), Failure> {
    let arguments = ["doc", "--workspace", "--all-features", "--no-deps"];
    context.cargo(&arguments).with_variable("RUSTDOCFLAGS", "-D warnings").run()
}
