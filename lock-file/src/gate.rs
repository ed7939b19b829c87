//! The gate: a `flock` on one file, held for some microseconds around every decision about who holds a lock next.
//!
//! The same file contains the counter, so that a process can have neither without the other, and the version of the folder's
//! layout.
//!
//! No process waits for the gate in the kernel. Otherwise a process that is stopped inside it (by a debugger, or by Ctrl-Z at the
//! wrong microsecond) would block all others beyond their deadlines. So they try, do something else, and try again.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

#[cfg(target_os = "linux")]
use crate::failure::Activity;
use crate::failure::{Failure, Occupant};
use crate::folder::{Folder, Identity, LockFolder};
use crate::record::write_all;
use crate::sync_point::{self, Point};

const GATE: &str = "gate";

/// The version of what is in the folder. It rises when a client of the version before could no longer tell who holds a lock.
const LAYOUT: u32 = 2;

/// How often the folder may be moved away or replaced before that is an error.
const ATTEMPTS: usize = 100;

/// The gate, while this process is in it.
#[derive(Debug)]
pub(crate) struct Gate {
    folder: Arc<Folder>,
    file: OwnedFd,
    identity: Identity,
    /// The last number that was given out, once it is known.
    last: Cell<Option<u64>>,
}

impl Gate {
    /// Enters the gate, or returns `None` if another process or thread is in it.
    pub(crate) fn enter(lock_folder: &LockFolder) -> Result<Option<Self>, Failure> {
        for _ in 0..ATTEMPTS {
            let folder = lock_folder.folder();
            let file = match folder.open_or_create(GATE) {
                Ok(file) => file,
                Err(failure) if failure.is_missing() => {
                    lock_folder.reopen()?;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            sync_point::reach(Point::BeforeGate);
            if !try_lock(&folder, GATE, &file, FlockOperation::NonBlockingLockExclusive)? {
                if folder.is_current() {
                    return Ok(None);
                }
                // A process in the gate of a folder that was moved away does not keep others out of the gate of the new folder.
                lock_folder.reopen()?;
                continue;
            }
            let identity = Identity::of(&folder.check(&file, GATE)?);
            let gate = Self { folder, file, identity, last: Cell::new(None) };
            // A gate file that was removed after it was opened excludes no other process, and neither does one in a folder that
            // was moved.
            if gate.is_in_place()? && gate.folder.is_current() {
                sync_point::reach(Point::InGate);
                return Ok(Some(gate));
            }
            lock_folder.reopen()?;
        }
        Err(Failure::meddling("keeps replacing", &lock_folder.folder().path_of(GATE)))
    }

    /// The folder that the gate belongs to.
    pub(crate) fn folder(&self) -> &Arc<Folder> {
        &self.folder
    }

    fn is_in_place(&self) -> Result<bool, Failure> {
        Ok(self.folder.identity_at(GATE)? == Some(self.identity))
    }

    /// Fails, as if the folder were gone, when another gate has taken the place of this one: then this process must enter that.
    pub(crate) fn check_in_place(&self) -> Result<(), Failure> {
        if self.is_in_place()? {
            return Ok(());
        }
        Err(Failure::system("find", &self.folder.path_of(GATE), Errno::NOENT))
    }

    /// Fails if a newer version of this program has changed how the folder is used. What is in the folder may then mean something
    /// else, so this must come before any decision.
    pub(crate) fn check_layout(&self) -> Result<(), Failure> {
        self.last_number().map(drop)
    }

    /// The next number of the folder's only counter: above all earlier ones, above `floor`, and not below the clock.
    ///
    /// The clock (in microseconds since 1970) keeps the numbers rising when the counter's file is lost.
    pub(crate) fn next_number(&self, floor: u64) -> Result<u64, Failure> {
        self.next_numbers(floor, NonZeroU32::MIN)
    }

    /// The first of so many numbers that follow each other.
    pub(crate) fn next_numbers(&self, floor: u64, count: NonZeroU32) -> Result<u64, Failure> {
        let path = self.folder.path_of(GATE);
        let first = self.last_number()?.max(floor).checked_add(1).map(|next| next.max(clock()));
        let last = first.and_then(|first| first.checked_add(u64::from(count.get() - 1)));
        let (Some(first), Some(last)) = (first, last) else {
            return Err(Failure::Broken {
                cause: format!("the counter in {} has reached its end", path.display()),
                remedy: "remove the folder when no process holds or awaits a lock in it".into(),
            });
        };
        write_all(&self.file, &contents(last), &path)?;
        self.last.set(Some(last));
        Ok(first)
    }

    /// The last number that was given out; 0 if the file contains none, or an incomplete one.
    fn last_number(&self) -> Result<u64, Failure> {
        if let Some(last) = self.last.get() {
            return Ok(last);
        }
        let mut text = [0; CONTENTS_LENGTH];
        let length = read_start(self.file.as_fd(), &mut text)
            .map_err(|errno| Failure::system("read", &self.folder.path_of(GATE), errno))?;
        let (number, layout) = text[..length].split_at(length.min(ENCODED_LENGTH));
        if let Some(layout) = decode_layout(layout).filter(|layout| *layout > LAYOUT) {
            return Err(Failure::NewerLayout {
                folder: self.folder.path().to_owned(),
                layout,
                known: LAYOUT,
            });
        }
        let last = decode(number).unwrap_or(0);
        self.last.set(Some(last));
        Ok(last)
    }

    /// The error for a gate that did not become free in time. It names the process in the gate if the system can tell.
    pub(crate) fn busy(lock_folder: &LockFolder) -> Failure {
        let folder = lock_folder.folder();
        let occupant = folder.open_to_look(GATE).ok().flatten().and_then(|file| occupant(&file));
        Failure::GateBusy { path: folder.path_of(GATE), occupant }
    }
}

impl Drop for Gate {
    /// Unlocks explicitly, because a child that another thread is starting has a copy of the descriptor until it executes its
    /// program. If this process only closed its own descriptor, the gate would stay shut until then.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Tries to lock an open file with `flock`, without waiting: `false` if another descriptor has the lock.
pub(crate) fn try_lock(
    folder: &Folder,
    relative: &str,
    file: &OwnedFd,
    operation: FlockOperation,
) -> Result<bool, Failure> {
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::system("lock", &folder.path_of(relative), errno)),
        }
    }
}

/// The system's clock, in microseconds since 1970.
pub(crate) fn clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(0)
}

/// 20 digits, a space, a check sum of 16 digits and a line feed. The length never changes, so that overwriting it needs no
/// space on the disk. It is written in one call, so that a killed process leaves the old number or the new one.
const ENCODED_LENGTH: usize = 38;

pub(crate) fn encode(number: u64) -> Vec<u8> {
    format!("{number:020} {:016x}\n", check_sum(number)).into_bytes()
}

/// What the gate's file contains: the last number, and a line with the version of the layout.
fn contents(number: u64) -> Vec<u8> {
    let mut contents = encode(number);
    contents.extend(format!("{LAYOUT_WORD}{LAYOUT}\n").into_bytes());
    contents
}

const LAYOUT_WORD: &str = "layout ";
const CONTENTS_LENGTH: usize = ENCODED_LENGTH + LAYOUT_WORD.len() + 2;

/// The version in the gate's second line; none if there is no such line. Of a long number the beginning is enough.
fn decode_layout(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.strip_prefix(LAYOUT_WORD)?.trim_end().parse().ok()
}

/// The first two numbers of a file, as far as they are complete.
pub(crate) fn read_numbers(file: BorrowedFd<'_>) -> Result<[Option<u64>; 2], Errno> {
    let mut text = [0; 2 * ENCODED_LENGTH];
    let length = read_start(file, &mut text)?;
    let (first, second) = text[..length].split_at(length.min(ENCODED_LENGTH));
    Ok([decode(first), decode(second)])
}

/// Fills `text` from the beginning of a file, and returns how much there was.
fn read_start(file: BorrowedFd<'_>, text: &mut [u8]) -> Result<usize, Errno> {
    let mut length = 0;
    while length < text.len() {
        match rustix::io::pread(file, &mut text[length..], length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(length)
}

fn decode(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('\n')?;
    let (number, sum) = text.split_once(' ')?;
    let number = number.parse().ok()?;
    (u64::from_str_radix(sum, 16).ok()? == check_sum(number)).then_some(number)
}

/// Mixes the bits of the number (the finaliser of the `SplitMix64` generator), so that no two numbers have the same check sum.
fn check_sum(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Finds the process that has the `flock` on a file, in `/proc/locks`. That does not show processes in other containers.
#[cfg(target_os = "linux")]
fn occupant(file: &OwnedFd) -> Option<Occupant> {
    let stat = rustix::fs::fstat(file).ok()?;
    let position = format!(
        "{:02x}:{:02x}:{}",
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
        stat.st_ino
    );
    let listed = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        (words.next()? == "FLOCK").then_some(())?;
        let pid = words.nth(2)?.parse().ok()?;
        (words.next()? == position).then_some(pid)
    };
    // The list is read in pieces: if a lock of another file goes meanwhile, one that stays can be missing.
    let pid = (0..3).find_map(|_| std::fs::read_to_string("/proc/locks").ok()?.lines().find_map(listed))?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    let activity = if matches!(state, 'T' | 't') { Activity::Stopped } else { Activity::Running };
    Some(Occupant { pid, activity })
}

#[cfg(not(target_os = "linux"))]
fn occupant(_file: &OwnedFd) -> Option<Occupant> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_read_back_or_not_believed() {
        for number in [0, 1, 1_763_000_000_000_000, u64::MAX] {
            assert_eq!(encode(number).len(), ENCODED_LENGTH);
            assert_eq!(decode(&encode(number)), Some(number));
        }
        let whole = encode(41);
        for length in 0..whole.len() {
            assert_eq!(decode(&whole[..length]), None, "{length}");
        }
        for position in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[position] ^= 1;
            assert_eq!(decode(&damaged), None, "{position}");
        }
    }

    #[test]
    fn numbers_rise_whatever_happens_to_the_file() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("locks");
        let lock_folder = LockFolder::open(&path).unwrap();
        let mut last = 0;
        let damages: [&dyn Fn(); 5] = [
            &|| {},
            &|| std::fs::remove_file(path.join(GATE)).unwrap(),
            &|| std::fs::write(path.join(GATE), "").unwrap(),
            &|| std::fs::write(path.join(GATE), "99999999999999999999 0000000000000000\n").unwrap(),
            &|| std::fs::write(path.join(GATE), [0xFF; 4096]).unwrap(),
        ];
        for _ in 0..20 {
            for damage in damages {
                damage();
                let gate = Gate::enter(&lock_folder).unwrap().unwrap();
                let number = gate.next_number(0).unwrap();
                assert!(number > last);
                last = number;
            }
        }
    }

    #[test]
    fn a_number_is_above_its_floor_and_the_end_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        let lock_folder = LockFolder::open(&scratch.path().join("locks")).unwrap();
        let gate = Gate::enter(&lock_folder).unwrap().unwrap();
        let floor = u64::MAX - 12;
        assert_eq!(gate.next_numbers(floor, NonZeroU32::new(10).unwrap()).unwrap(), floor + 1);
        assert!(matches!(gate.next_numbers(0, NonZeroU32::new(3).unwrap()), Err(Failure::Broken { .. })));
        assert_eq!(gate.next_number(0).unwrap(), u64::MAX - 1);
        assert_eq!(gate.next_number(0).unwrap(), u64::MAX);
        drop(gate);
        let gate = Gate::enter(&lock_folder).unwrap().unwrap();
        assert!(matches!(gate.next_number(0), Err(Failure::Broken { .. })), "what was given is remembered");
    }

    #[test]
    fn one_at_a_time() {
        let scratch = tempfile::tempdir().unwrap();
        let lock_folder = LockFolder::open(&scratch.path().join("locks")).unwrap();
        let gate = Gate::enter(&lock_folder).unwrap().unwrap();
        assert!(Gate::enter(&lock_folder).unwrap().is_none());
        #[cfg(target_os = "linux")]
        assert!(matches!(
            Gate::busy(&lock_folder),
            Failure::GateBusy { occupant: Some(Occupant { pid, activity: Activity::Running }), .. }
                if pid == std::process::id()
        ));
        drop(gate);
        assert!(Gate::enter(&lock_folder).unwrap().is_some());
    }
}
