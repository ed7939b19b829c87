//! Slots of locks that are remembered: a file for each, with the time in it at which the slot may be forgotten, and since when.
//!
//! The files are spread over folders by the first character of their names, which are hashes. Each call tidies up a few
//! files of the folder that it uses, so every folder is cleaned as long as any slots are used.

use std::os::fd::AsFd;
use std::time::Duration;

use lock_core::{Recall, Remembered};

use crate::failure::Failure;
use crate::folder::Folder;
use crate::gate::{Gate, clock, encode, read_numbers};
use crate::record::write_all;

const REMEMBERED: &str = "remembered";

/// How many files of other slots a call looks at.
const SWEPT_AT_ONCE: usize = 8;

/// Remembers the slot with this key, unless it is remembered.
pub(crate) fn remember(gate: &Gate, key: &str, keep: Duration) -> Result<Remembered, Failure> {
    let (folder, now, bucket) = (gate.folder(), clock(), bucket(key));
    let relative = format!("{bucket}/{key}");
    let left = left(folder, &relative, now)?;
    if left > 0 {
        return Ok(Remembered::Already { remaining: Duration::from_micros(left) });
    }
    write(folder, &relative, now, u64::try_from(keep.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX))?;
    sweep(folder, &bucket, now);
    Ok(Remembered::Now)
}

/// Returns for how much longer the slot with this key is remembered, and removes its file if it is to be forgotten.
pub(crate) fn recall(gate: &Gate, key: &str, recall: Recall) -> Result<Option<Duration>, Failure> {
    let (folder, relative) = (gate.folder(), format!("{}/{key}", bucket(key)));
    let left = left(folder, &relative, clock())?;
    if recall == Recall::Forget {
        folder.remove(&relative)?;
    }
    Ok((left > 0).then(|| Duration::from_micros(left)))
}

fn bucket(key: &str) -> String {
    format!("{REMEMBERED}/{}", key.chars().take(1).collect::<String>())
}

/// Remembers a slot for so many microseconds from now on. The file contains the end first, then the beginning.
fn write(folder: &Folder, relative: &str, now: u64, keep: u64) -> Result<(), Failure> {
    let file = folder.open_or_create(relative)?;
    folder.check(&file, relative)?;
    let contents = [encode(now.saturating_add(keep)), encode(now)].concat();
    write_all(&file, &contents, &folder.path_of(relative))
}

/// For how many microseconds a slot is still remembered; 0 if it is not. A process that was killed before it wrote the file has had no
/// answer, so its slot is free.
fn left(folder: &Folder, relative: &str, now: u64) -> Result<u64, Failure> {
    let Some(file) = folder.open_to_look(relative)? else { return Ok(0) };
    folder.check(&file, relative)?;
    let [until, from] = read_numbers(file.as_fd())
        .map_err(|errno| Failure::system("read", &folder.path_of(relative), errno))?;
    let (until, from) = (until.unwrap_or(0), from.unwrap_or(0));
    if from <= now {
        return Ok(until.saturating_sub(now));
    }
    // The clock was ahead then, or is behind now: how much of the time has passed is unknown, so all of it begins again.
    let keep = until.saturating_sub(from);
    write(folder, relative, now, keep)?;
    Ok(keep)
}

/// Looks at some files of a folder, and removes those of slots that may be forgotten. Best effort: a later call tries again.
fn sweep(folder: &Folder, bucket: &str, now: u64) {
    let Ok(Some(mut names)) = folder.list(bucket) else { return };
    if names.len() > SWEPT_AT_ONCE {
        // Begin elsewhere each time, so that slots that last long hide none.
        let start = now % u64::try_from(names.len()).unwrap_or(u64::MAX);
        names.rotate_left(usize::try_from(start).unwrap_or(0));
        names.truncate(SWEPT_AT_ONCE);
    }
    for name in names {
        let relative = format!("{bucket}/{name}");
        if left(folder, &relative, now).is_ok_and(|left| left == 0) {
            let _ = folder.remove(&relative);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::folder::LockFolder;

    const KEY: &str = "abcdefghijklmnopqrstuvwxyz234567";
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn gate(path: &Path) -> Gate {
        Gate::enter(&LockFolder::open(path).unwrap()).unwrap().unwrap()
    }

    fn files(path: &Path) -> usize {
        std::fs::read_dir(path.join("remembered/a")).unwrap().count()
    }

    #[test]
    fn a_slot_is_remembered_once() {
        let scratch = tempfile::tempdir().unwrap();
        let gate = gate(&scratch.path().join("locks"));
        assert_eq!(remember(&gate, KEY, DAY).unwrap(), Remembered::Now);
        let again = remember(&gate, KEY, DAY * 2).unwrap();
        assert!(matches!(again, Remembered::Already { remaining } if remaining <= DAY), "{again:?}");
        assert_eq!(remember(&gate, "b", DAY).unwrap(), Remembered::Now);
        assert_eq!(remember(&gate, "a", Duration::MAX).unwrap(), Remembered::Now);
        assert!(matches!(remember(&gate, "a", DAY).unwrap(), Remembered::Already { .. }));
    }

    #[test]
    fn a_slot_whose_process_was_killed_before_it_was_written_is_free() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("locks");
        let gate = gate(&path);
        remember(&gate, KEY, DAY).unwrap();
        let file = path.join("remembered/a").join(KEY);
        for text in ["", "00000000000000000001", "nonsense"] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(remember(&gate, KEY, DAY).unwrap(), Remembered::Now, "{text}");
            let again = remember(&gate, KEY, DAY).unwrap();
            assert!(matches!(again, Remembered::Already { .. }), "{text}: {again:?}");
        }
    }

    #[test]
    fn a_slot_that_was_remembered_when_the_clock_was_ahead_lasts_no_longer_than_it_was_to() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("locks");
        let gate = gate(&path);
        remember(&gate, KEY, DAY).unwrap();
        let (file, ahead) = (path.join("remembered/a").join(KEY), clock() * 2);
        let day = u64::try_from(DAY.as_micros()).unwrap();
        std::fs::write(&file, [encode(ahead + day), encode(ahead)].concat()).unwrap();
        let again = remember(&gate, KEY, DAY).unwrap();
        assert!(matches!(again, Remembered::Already { remaining } if remaining <= DAY), "{again:?}");
        // From now on its time passes.
        let [until, from] = read_numbers(std::fs::File::open(&file).unwrap().as_fd()).unwrap();
        assert!(from.unwrap() <= clock() && until.unwrap() <= clock() + day);
    }

    #[test]
    fn forgotten_slots_leave_no_files() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("locks");
        let gate = gate(&path);
        remember(&gate, KEY, DAY).unwrap();
        for number in 0..20 {
            assert_eq!(remember(&gate, &format!("a{number}"), Duration::ZERO).unwrap(), Remembered::Now);
        }
        for _ in 0..20 {
            remember(&gate, "a", Duration::ZERO).unwrap();
        }
        assert!(files(&path) <= 2, "only those that are remembered, and the last one");
        assert!(matches!(remember(&gate, KEY, DAY).unwrap(), Remembered::Already { .. }));
    }
}
