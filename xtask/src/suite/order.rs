//! The order of the programs, and the programs that must run alone.

use std::num::NonZero;
use std::thread;

use super::programs::Program;
use crate::failure::Failure;

/// The programs that take longest, in this order and before all others: the last programs to start should be short.
/// Programs that compute run beside programs that wait.
const FIRST: &[&str] = &[
    "distlock-cli --test command",
    "lock-mysql --test faults",
    "conformance-tests --test zookeeper-closed",
    "lock-redis --test faults",
    "lock-redis --test protocol",
    "conformance-tests --test zookeeper",
    "lock-file --lib",
    "lock-zookeeper --test faults",
    "conformance-tests --test mysql57-table",
    "conformance-tests --test file",
    "conformance-tests --test zookeeper-ensemble",
    "test-servers --lib",
    "conformance-tests --test redis",
    "conformance-tests --test mariadb-table",
    "conformance-tests --test mysql57",
    "conformance-tests --test mariadb",
    "conformance-tests --test memory-with-lease",
    "conformance-tests --test memory",
    "conformance-tests --test broken",
    "conformance-tests --test zookeeper-curator",
    "conformance-tests --test redis-polling",
    "lock-core --test model",
    "distlock --example same_program",
    "lock-core --lib",
];

/// The programs that cannot run beside others, with the reason.
const ALONE: &[(&str, &str)] = &[(
    "lock-bench --test quick",
    "it measures, and a busy server has clients open more connections than it counts on",
)];

/// The programs whose tests wait most of the time, one after the other on each thread, with a number of threads for
/// each processor.
const WAITING: &[(&str, usize)] = &[("distlock-cli --test command", 3)];

/// Returns how many threads a program's tests run on, unless the program itself chooses.
pub(super) fn threads(program: &str) -> Option<usize> {
    let (_, threads) = WAITING.iter().find(|(name, _)| *name == program)?;
    Some(threads * processors())
}

fn processors() -> usize {
    thread::available_parallelism().map_or(2, NonZero::get)
}

/// Returns more than the number of processors, because most programs wait most of the time.
pub(super) fn at_once() -> usize {
    2 + processors()
}

/// Returns the programs that run alone, and the others in the order in which they start.
pub(super) fn arranged(programs: Vec<Program>) -> Result<(Vec<Program>, Vec<Program>), Failure> {
    arranged_by(programs, FIRST, ALONE)
}

fn arranged_by(
    mut programs: Vec<Program>,
    first: &[&str],
    alone: &[(&str, &str)],
) -> Result<(Vec<Program>, Vec<Program>), Failure> {
    let named = first.iter().chain(alone.iter().map(|(name, _)| name));
    if let Some(stranger) = named.copied().find(|name| programs.iter().all(|program| program.name != *name)) {
        return Err(Failure::new(format!(
            "xtask/src/suite/order.rs names {stranger:?}, and there is no such test program"
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

    #[test]
    fn the_longest_come_first_and_the_others_as_cargo_names_them() {
        let (alone, together) = arranged_by(programs(), &["d", "b"], &[("a", "it counts threads")]).unwrap();
        assert_eq!(names(&together), ["d", "b", "c"]);
        assert_eq!(names(&alone), ["a"]);
    }

    #[test]
    fn a_name_that_no_program_has_any_more_is_an_error() {
        assert!(arranged_by(programs(), &["e"], &[]).unwrap_err().to_string().contains("\"e\""));
        assert!(arranged_by(programs(), &[], &[("e", "…")]).is_err());
    }
}
