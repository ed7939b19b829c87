//! Runs the first command of the README, as a reader would. Also checks what the README says about a feature that this
//! command is built without, because the suite, which is built with all features, cannot check that.

use crate::context::Context;
use crate::failure::{Failure, read};
use crate::process::Process;

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let readme = read(&context.root().join("README.md"))?;
    let promise = Promise::read(&readme)
        .ok_or_else(|| Failure::new("README.md shows no `cargo run … \"what it prints\"` any more"))?;
    let printed = Process::new("sh", &["-c", promise.command_line]).within(context.root()).stdout()?;
    promise.check(&printed)?;
    names_the_feature_that_tls_needs(context)
}

fn names_the_feature_that_tls_needs(context: &Context) -> Result<(), Failure> {
    let url = "zookeeper://127.0.0.1:1/locks?ca=/nonexistent/ca.pem";
    let process = context.cargo(&["run", "--package", "distlock-cli", "--", "status", "--url", url, "any"]);
    let refusal = process.refusal()?;
    if refusal.contains("not compiled in") && refusal.contains("zookeeper-tls") {
        return Ok(());
    }
    let problem =
        format!("a URL that asks for TLS to ZooKeeper was not refused as the README says: {refusal}");
    Err(Failure::new(problem).repeated_by(process.command_line()))
}

/// A command line of the README and what the reader expects from it.
#[derive(Debug, PartialEq, Eq)]
struct Promise<'a> {
    command_line: &'a str,
    prints: &'a str,
}

impl<'a> Promise<'a> {
    fn read(readme: &'a str) -> Option<Self> {
        let command_line = readme.lines().map(str::trim).find(|line| line.starts_with("cargo run "))?;
        Some(Self { command_line, prints: command_line.strip_suffix('"')?.rsplit('"').next()? })
    }

    fn check(&self, printed: &str) -> Result<(), Failure> {
        if printed.trim() == self.prints {
            return Ok(());
        }
        let problem = format!("expected {:?} and nothing else, it printed {printed:?}", self.prints);
        Err(Failure::new(problem).repeated_by(self.command_line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_promise_is_read_from_the_text() {
        let promise = Promise::read("# x\n\n```sh\ncargo run -p c -- exec n -- echo \"only one\"\n```\n");
        let promise = promise.unwrap();
        assert_eq!(promise.command_line, "cargo run -p c -- exec n -- echo \"only one\"");
        assert_eq!(promise.prints, "only one");
        assert_eq!(promise.check("only one\n"), Ok(()));
        assert!(promise.check("").is_err());
        assert!(promise.check("only one\nand more\n").is_err());
    }

    #[test]
    fn a_readme_without_it_is_noticed() {
        assert_eq!(Promise::read("cargo build --release\n"), None);
        assert_eq!(Promise::read("cargo run -p c -- exec n -- true\n"), None);
    }
}
