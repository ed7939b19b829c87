//! Runs cargo-deny if it is installed. It takes minutes to compile, so this step never installs it.

use crate::context::Context;
use crate::failure::Failure;

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    if !context.cargo(&["deny", "--version"]).succeeds() {
        context.skip("cargo-deny, which is not installed (cargo install --locked cargo-deny)");
        return Ok(());
    }
    context.cargo(&["deny", "--all-features", "check", "licenses", "bans", "sources"]).run()?;
    if !context.cargo(&["deny", "fetch", "db"]).succeeds() {
        context.skip("advisories, whose database cannot be fetched from here (cargo deny fetch db)");
        return Ok(());
    }
    context.cargo(&["deny", "--all-features", "check", "--disable-fetch", "advisories"]).run()
}
