//! Runs the first command of the README, as a reader would. Also checks what the README says about a feature that this
//! command is built without, because the suite, which is built with all features, cannot check that.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::context::Context;
use crate::process;

pub(super) fn run(context: &Context) -> Result<()> {
    let readme = fs::read_to_string(context.root().join("README.md")).context("README.md cannot be read")?;
    let what = "README.md shows no `cargo run … \"what it prints\"` any more";
    let (command_line, prints) = promise(&readme).context(what)?;
    let mut shell = process::command("sh", "-c");
    let printed = process::output(shell.arg(command_line).current_dir(context.root()))?;
    ensure!(printed.trim() == prints, "`{command_line}` printed {printed:?} instead of {prints:?} alone");
    names_the_feature_that_tls_needs(context)
}

fn names_the_feature_that_tls_needs(context: &Context) -> Result<()> {
    let url = "zookeeper://127.0.0.1:1/locks?ca=/nonexistent/ca.pem";
    let mut cargo = context.cargo(&format!("run --package distlock-cli -- status --url {url} any"));
    let output = cargo.stderr(std::process::Stdio::piped()).output()?;
    let refusal = String::from_utf8_lossy(&output.stderr);
    let is_right = refusal.contains("not compiled in") && refusal.contains("zookeeper-tls");
    ensure!(!output.status.success() && is_right, "{url} was not refused as the README says: {refusal}");
    Ok(())
}

/// Returns the first command line of the README, and what its reader expects from it.
fn promise(readme: &str) -> Option<(&str, &str)> {
    let command_line = readme.lines().map(str::trim).find(|line| line.starts_with("cargo run "))?;
    Some((command_line, command_line.strip_suffix('"')?.rsplit('"').next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_promise_is_read_from_the_text() {
        let readme = "# x\n\n```sh\ncargo run -p c -- exec n -- echo \"only one\"\n```\n";
        let (command_line, prints) = promise(readme).unwrap();
        assert_eq!(command_line, "cargo run -p c -- exec n -- echo \"only one\"");
        assert_eq!(prints, "only one");
    }

    #[test]
    fn a_readme_without_it_is_noticed() {
        assert!(promise("cargo build --release\n").is_none());
        assert!(promise("cargo run -p c -- exec n -- true\n").is_none());
    }
}
