//! Runs the conformance suite against the example of a backend outside of the workspace.

use std::fs;

use crate::context::Context;
use crate::failure::Failure;

const FOLDER: &str = "examples/outside-backend";

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let folder = context.root().join(FOLDER);
    // It is compiled with what is on this machine already.
    fs::copy(context.root().join("Cargo.lock"), folder.join("Cargo.lock"))
        .map_err(|error| Failure::new(format!("Cargo.lock cannot be copied to {FOLDER}: {error}")))?;
    let manifest = format!("{FOLDER}/Cargo.toml");
    context
        .cargo(&["test", "--quiet", "--offline", "--target-dir", "target", "--manifest-path", &manifest])
        .run()
}
