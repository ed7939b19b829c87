//! The order of the programs, and the programs that must run alone.
//!
//! The programs that take longest begin first: the last programs to start should be short, and programs that compute
//! should run beside programs that wait. The table `[package.metadata.suite.order]` of a crate gives these programs
//! their numbers: a lower one begins earlier, and a program without a number after all of them.

use std::num::NonZero;
use std::thread;

use super::programs::Program;
use crate::failure::Failure;
use crate::metadata::Metadata;

/// The programs that cannot run beside others, with the reason.
const ALONE: &[(&str, &str)] = &[(
    "lock-bench --test quick",
    "it measures, and a busy server has clients open more connections than it counts on",
)];

/// The programs whose tests mostly wait, one after the other on each thread, with a number of threads for each processor.
const WAITING: &[(&str, usize)] = &[("distlock-cli --test command", 3)];

/// Returns how many threads a program's tests run on, unless the program itself chooses.
pub(super) fn threads(program: &str) -> Option<usize> {
    let (_, threads) = WAITING.iter().find(|(name, _)| *name == program)?;
    Some(threads * processors())
}

fn processors() -> usize {
    thread::available_parallelism().map_or(2, NonZero::get)
}

/// Returns more than the number of processors, because most programs mostly wait.
pub(super) fn at_once() -> usize {
    2 + processors()
}

/// Returns the programs that run alone, and the others in the order in which they start.
pub(super) fn arranged(
    programs: Vec<Program>,
    metadata: &Metadata,
) -> Result<(Vec<Program>, Vec<Program>), Failure> {
    arranged_by(programs, &numbered(metadata), ALONE)
}

/// Returns the programs that have a number, in their order.
fn numbered(metadata: &Metadata) -> Vec<String> {
    let orders =
        metadata.packages.iter().filter_map(|package| Some((package, package.suite["order"].as_object()?)));
    let mut numbered: Vec<_> = orders
        .flat_map(|(package, order)| {
            order
                .iter()
                .map(move |(program, number)| (number.as_u64(), format!("{} {program}", package.name)))
        })
        .collect();
    numbered.sort();
    numbered.into_iter().map(|(_, name)| name).collect()
}

fn arranged_by(
    mut programs: Vec<Program>,
    first: &[String],
    alone: &[(&str, &str)],
) -> Result<(Vec<Program>, Vec<Program>), Failure> {
    let named = first.iter().map(String::as_str).chain(alone.iter().map(|(name, _)| *name));
    if let Some(stranger) =
        named.into_iter().find(|name| programs.iter().all(|program| program.name != *name))
    {
        return Err(Failure::new(format!(
            "a crate's package.metadata.suite.order, or xtask/src/suite/order.rs, names {stranger:?}, and there is no such \
             test program"
        )));
    }
    let place =
        |program: &Program| first.iter().position(|name| *name == program.name).unwrap_or(first.len());
    programs.sort_by_key(place);
    Ok(programs.into_iter().partition(|program| alone.iter().any(|(name, _)| *name == program.name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;

    fn programs() -> Vec<Program> {
        let program = |name: &str| Program {
            name: name.to_owned(),
            repeat: String::new(),
            process: Process::new(name, &[]),
        };
        ["a", "b", "c", "d"].map(program).into()
    }

    fn names(programs: &[Program]) -> Vec<&str> {
        programs.iter().map(|program| program.name.as_str()).collect()
    }

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_numbers_of_all_crates_are_one_order() {
        let metadata = r#"{"packages": [
            {"name": "a", "manifest_path": "", "metadata": {"suite": {"order": {"--lib": 10, "--test x": 30}}}},
            {"name": "b", "manifest_path": "", "metadata": {"suite": {"order": {"--lib": 20}}}},
            {"name": "c", "manifest_path": "", "metadata": null}]}"#;
        assert_eq!(numbered(&Metadata::parse(metadata).unwrap()), ["a --lib", "b --lib", "a --test x"]);
    }

    #[test]
    fn the_longest_come_first_and_the_others_as_cargo_names_them() {
        let (alone, together) =
            arranged_by(programs(), &owned(&["d", "b"]), &[("a", "it counts threads")]).unwrap();
        assert_eq!(names(&together), ["d", "b", "c"]);
        assert_eq!(names(&alone), ["a"]);
    }

    #[test]
    fn a_name_that_no_program_has_any_more_is_an_error() {
        assert!(arranged_by(programs(), &owned(&["e"]), &[]).unwrap_err().to_string().contains("\"e\""));
        assert!(arranged_by(programs(), &[], &[("e", "…")]).is_err());
    }
}
