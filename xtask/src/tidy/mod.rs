//! Rules that the compiler does not check. Each is one row in [`RULES`], and `CONTRIBUTING.md` explains them.

mod backends;
mod circles;
mod dependencies;
mod imports;
mod layers;
mod links;
mod mutants;
mod rust_sources;
mod text_files;
mod tree;

use std::fmt::Display;

use cargo_metadata::Metadata;
pub(crate) use links::resolved;

use crate::console::Console;
use crate::context::Context;
use crate::failure::Failure;
use tree::Tree;

/// What a rule checks.
pub(crate) struct Workspace {
    tree: Tree,
    metadata: Metadata,
}

/// One place that breaks a rule, and how.
type Finding = String;

fn in_file(path: &str, problem: impl Display) -> Finding {
    format!("{path}: {problem}")
}

/// `line` counts from 1.
fn at(path: &str, line: usize, problem: impl Display) -> Finding {
    format!("{path}:{line}: {problem}")
}

type Rule = (&'static str, fn(&Workspace) -> Vec<Finding>);

const RULES: &[Rule] = &[
    ("unsafe code is in one module of the command, if anywhere", rust_sources::one_unsafe_module),
    ("every lint that is switched off has its reason beside it", rust_sources::reasons_for_allowed_lints),
    ("everything that is logged has the target distlock", rust_sources::one_log_target),
    ("crates depend on each other in one direction, and the core on little else", dependencies::direction),
    ("the folders of the core import downwards", layers::import_downwards),
    ("no circle of imports crosses a folder of the core", circles::stay_in_a_folder),
    ("few files know a backend, and a page lists them", backends::are_known_by_few_files),
    ("every crate takes the lints of the workspace", text_files::lints_of_the_workspace),
    ("no file is too long to be one module", text_files::length),
    ("nothing is left to do", text_files::left_to_do),
    ("every link of every page leads somewhere", links::resolve),
    ("every mutant can be applied", mutants::can_be_applied),
];

pub(crate) fn run(context: &Context) -> Result<(), Failure> {
    let workspace = Workspace { tree: Tree::read(context.root())?, metadata: context.metadata()? };
    let mut broken = 0;
    for (rule, check) in RULES {
        let findings = check(&workspace);
        if !findings.is_empty() {
            context.console.error(rule);
        }
        for finding in &findings {
            Console::detail(finding);
        }
        broken += findings.len();
    }
    if broken > 0 {
        return Err(Failure::new(format!(
            "{broken} of the places named above break a rule of the workspace"
        )));
    }
    Console::detail(&format!("{} rules hold in {} files", RULES.len(), workspace.tree.files().len()));
    Ok(())
}
