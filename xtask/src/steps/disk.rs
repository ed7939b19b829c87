//! Refuses to start on a disk that the build would fill: compilers and linkers fail late there, with messages that do not say
//! why.

use crate::context::Context;
use crate::failure::Failure;
use crate::metadata::Metadata;
use crate::process::Process;

/// What `target` has after all steps from an empty one, without incremental builds, and a little more.
const NEEDED: u64 = 7 * GIB;
const GIB: u64 = 1 << 30;

pub(super) fn check(context: &Context, metadata: &Metadata) -> Result<(), Failure> {
    let target = &metadata.target_directory;
    std::fs::create_dir_all(target)
        .map_err(|error| Failure::new(format!("cannot create {}: {error}", target.display())))?;
    let target = target.display().to_string();
    let used = kibibytes(&Process::new("du", &["-sk", &target]).stdout()?, 0);
    let free = kibibytes(&Process::new("df", &["-Pk", &target]).stdout()?, 3);
    if let (Some(used), Some(free)) = (used, free) {
        return enough(&target, used, free);
    }
    context.skip("free disk space: du and df answered something else than numbers");
    Ok(())
}

/// Reads a column of the last line that `du` or `df` printed; in bytes.
fn kibibytes(output: &str, column: usize) -> Option<u64> {
    let number: u64 = output.lines().last()?.split_whitespace().nth(column)?.parse().ok()?;
    number.checked_mul(1024)
}

fn enough(target: &str, used: u64, free: u64) -> Result<(), Failure> {
    let missing = NEEDED.saturating_sub(used);
    if free >= missing {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the checks need {} GiB more in {target}, and less than {} GiB are free: free some space, or set \
         CARGO_TARGET_DIR to a folder on another disk",
        missing.div_ceil(GIB),
        free / GIB + 1
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_refused_with_both_sizes() {
        let failure = enough("target", 2 * GIB, GIB).unwrap_err().to_string();
        assert!(
            failure.contains("5 GiB more in target") && failure.contains("than 2 GiB are free"),
            "{failure}"
        );
    }

    #[test]
    fn what_is_built_already_needs_no_more_space() {
        assert_eq!(enough("target", 0, NEEDED), Ok(()));
        assert_eq!(enough("target", NEEDED - GIB, GIB), Ok(()));
        assert_eq!(enough("target", 40 * GIB, 0), Ok(()));
    }

    #[test]
    fn the_columns_of_du_and_df_are_read() {
        assert_eq!(kibibytes("12\ttarget\n", 0), Some(12 << 10));
        let df = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/sda1 100 60 40 60% /\n";
        assert_eq!(kibibytes(df, 3), Some(40 << 10));
        assert_eq!(kibibytes("", 3), None);
    }
}
