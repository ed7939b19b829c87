//! The context of every step: the root of the workspace, the way to call cargo, the console, and what was skipped so far.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use crate::console::Console;
use crate::failure::Failure;
use crate::metadata::Metadata;
use crate::process::Process;
use crate::tier::Tier;

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) console: Console,
    pub(crate) tier: Tier,
    root: PathBuf,
    skipped: RefCell<Vec<String>>,
}

impl Context {
    pub(crate) fn new(console: Console, tier: Tier) -> Self {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self { console, tier, root: own.parent().unwrap_or(own).to_owned(), skipped: RefCell::default() }
    }

    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the cargo that started this program, so that a toolchain chosen with `cargo +nightly xtask` is kept.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Process {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        Process::new(&cargo, arguments).shown_as("cargo").within(&self.root)
    }

    pub(crate) fn metadata(&self) -> Result<Metadata, Failure> {
        let process = self.cargo(&["metadata", "--format-version", "1", "--no-deps"]);
        Metadata::parse(&process.stdout()?)
    }

    /// Reports what is not checked, now and once more at the end: nothing is skipped silently.
    pub(crate) fn skip(&self, what: &str) {
        self.console.skipped(what);
        self.skipped.borrow_mut().push(what.to_owned());
    }

    pub(crate) fn skipped(&self) -> Vec<String> {
        self.skipped.borrow().clone()
    }
}
