//! Contenders for a lock: the children of its directory, in their order.
//!
//! The client names its nodes as Curator's `InterProcessMutex` does: `_c_` + a random UUID + `-lock-` + the sequence number that
//! the server appends. The part before `lock-` matters only to the program that created the node, so nodes of older and other
//! programs with the same ending count too. A node without a number is not a contender: notes of an operator, directories. Nor are
//! the nodes of Curator's other recipes, which do not wait for a Curator lock either.
//!
//! Any other child with a number is a stranger. It may be a node of ZooKeeper's own recipe for locks (`x-` + session + `-` + number),
//! of kazoo without the option for it, or of a user's script. Its creator may consider it the holder of the lock, so attempts
//! behind it are refused.

use std::fmt::Write as _;

/// The text before the sequence number.
const LOCK_NAME: &str = "lock-";

/// The text that kazoo's `Lock`, `WriteLock` and `ReadLock` write before the number.
const KAZOO_NAMES: [&str; 2] = ["__lock__", "__rlock__"];

/// The texts before the number in Curator's other recipes.
const NO_LOCKS: [&str; 4] = ["__READ__", "__WRIT__", "lease-", "latch-"];

/// How many digits the server appends.
const DIGITS: usize = 10;

/// From this number on the server's counter is near its end or past it: it sticks at 2³¹ − 1 and gives numbers twice.
const END_OF_SEQUENCES: i64 = (1 << 31) - (1 << 16);

/// From this number on the client removes an empty directory, so that the counter starts again.
const WORTH_RESETTING: i64 = 1 << 30;

/// The programs whose nodes count as contenders, by their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Accepted {
    /// Ours and Curator's.
    #[default]
    Curator,
    /// And kazoo's.
    CuratorAndKazoo,
}

/// A node in the queue for the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) sequence: i64,
    /// The name of its node in the lock's directory.
    pub(crate) name: String,
}

impl Contender {
    /// Reads the name of a child; none if the child is not a contender.
    pub(crate) fn read(name: &str, accepted: Accepted) -> Option<Self> {
        let after = |marker: &str| name.rfind(marker).map(|start| &name[start + marker.len()..]);
        let sequence = after(LOCK_NAME).and_then(read_sequence).or_else(|| match accepted {
            Accepted::Curator => None,
            Accepted::CuratorAndKazoo => KAZOO_NAMES.iter().find_map(|marker| read_sequence(after(marker)?)),
        })?;
        Some(Self { sequence, name: name.to_owned() })
    }

    /// Whether another node may have the same number; then only the order of creation counts.
    pub(crate) fn is_at_the_end_of_sequences(&self) -> bool {
        self.sequence < 0 || self.sequence >= END_OF_SEQUENCES
    }

    /// Whether the counter of the directory should start again.
    pub(crate) fn is_worth_resetting(&self) -> bool {
        self.sequence < 0 || self.sequence >= WORTH_RESETTING
    }
}

/// Reads the digits that the server appends: ten or more. After an overflow of the counter, a minus takes the place of one digit.
fn read_sequence(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = text.len() >= DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// The contenders among the children of a directory, in the order of their numbers.
pub(crate) fn contenders(children: &[String], accepted: Accepted) -> Vec<Contender> {
    let mut contenders: Vec<_> = children.iter().filter_map(|name| Contender::read(name, accepted)).collect();
    contenders.sort_unstable_by(|one, other| (one.sequence, &one.name).cmp(&(other.sequence, &other.name)));
    contenders
}

/// The number of a child that has a number like a contender but is of an unknown kind; none if the child is not a stranger.
fn read_stranger(name: &str, accepted: Accepted) -> Option<i64> {
    let number = name.get(name.len().checked_sub(DIGITS)?..).and_then(read_sequence)?;
    let is_known = Contender::read(name, accepted).is_some()
        || NO_LOCKS.iter().any(|word| is_made_by_curator(name, word));
    (!is_known && (0..1 << 31).contains(&number)).then_some(number)
}

/// Whether the name is this word and a number, with nothing before it or with the prefix by which Curator finds its own nodes.
fn is_made_by_curator(name: &str, word: &str) -> bool {
    name.rsplit_once(word).is_some_and(|(before, number)| {
        (before.is_empty() || before.starts_with("_c_")) && read_sequence(number).is_some()
    })
}

/// The first of the children that is before this contender and of which it is unknown whether it has the lock.
pub(crate) fn stranger_before<'a>(
    own: Option<&Contender>,
    children: &'a [String],
    accepted: Accepted,
) -> Option<&'a str> {
    let stands_before =
        |number: i64| own.is_none_or(|own| own.is_at_the_end_of_sequences() || number < own.sequence);
    let strangers = children.iter().filter_map(|name| Some((read_stranger(name, accepted)?, name.as_str())));
    strangers.filter(|(number, _)| stands_before(*number)).min().map(|(_, name)| name)
}

/// The mark in the names of the nodes of one attempt in one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark(String);

impl Mark {
    /// A mark from 128 random bits, in the form of a random UUID (RFC 9562, version 4), so that no other attempt has it.
    pub(crate) fn of(random: u128) -> Self {
        let number = (random & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
        let digits = format!("{number:032x}");
        let mut text = String::with_capacity(40);
        text.push_str("_c_");
        for (position, digit) in digits.chars().enumerate() {
            if matches!(position, 8 | 12 | 16 | 20) {
                text.push('-');
            }
            text.push(digit);
        }
        let _ = write!(text, "-");
        Self(text)
    }

    /// The name of the node without its number.
    pub(crate) fn prefix(&self) -> String {
        format!("{}{LOCK_NAME}", self.0)
    }

    /// Whether the node has this mark.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        name.starts_with(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(contenders: &[Contender]) -> Vec<&str> {
        contenders.iter().map(|contender| contender.name.as_str()).collect()
    }

    #[test]
    fn a_mark_is_a_random_uuid_between_curators_words() {
        assert_eq!(Mark::of(0).prefix(), "_c_00000000-0000-4000-8000-000000000000-lock-");
        assert_eq!(Mark::of(u128::MAX).prefix(), "_c_ffffffff-ffff-4fff-bfff-ffffffffffff-lock-");
        let name = format!("{}0000000007", Mark::of(5).prefix());
        assert!(Mark::of(5).is_on(&name) && !Mark::of(6).is_on(&name));
    }

    #[test]
    fn the_order_is_that_of_the_numbers_whatever_stands_before_them() {
        let children =
            ["_c_zz-lock-0000000003", "lock-0000000001", "_c_aa-lock-0000000012", "x-lock-0000000002"];
        let found = contenders(&children.map(str::to_owned), Accepted::Curator);
        assert_eq!(
            names(&found),
            ["lock-0000000001", "x-lock-0000000002", "_c_zz-lock-0000000003", "_c_aa-lock-0000000012"]
        );
    }

    #[test]
    fn what_is_no_contender_is_passed_over() {
        for name in [
            "notes",
            "lock-",
            "lock-12",
            "lock-000000000x",
            "lock-0000000001x",
            "_c_aa-lock-",
            "0000000001",
            "lock--00000001",
            "lock---00000001",
            "lock-+0000000001",
            "block-0000000001x",
            "aa__lock__0000000001",
            "",
        ] {
            assert_eq!(Contender::read(name, Accepted::Curator), None, "{name}");
        }
    }

    #[test]
    fn numbers_past_the_end_are_read_and_told() {
        let read = |name: &str| Contender::read(name, Accepted::Curator).unwrap();
        assert_eq!(read("lock-0000000001").sequence, 1);
        assert_eq!(read("lock--2147483648").sequence, -2_147_483_648);
        assert_eq!(read("lock--000000005").sequence, -5);
        assert_eq!(read("lock-0000000000000000001").sequence, 1);
        assert!(!read("lock-1073741823").is_worth_resetting());
        assert!(read("lock-1073741824").is_worth_resetting());
        assert!(!read("lock-2147418111").is_at_the_end_of_sequences());
        assert!(read("lock-2147418112").is_at_the_end_of_sequences());
        assert!(read("lock--2147483648").is_at_the_end_of_sequences());
    }

    #[test]
    fn a_number_that_nobody_knows_makes_a_stranger() {
        let number = |name: &str| read_stranger(name, Accepted::Curator);
        for name in [
            "0000000007",
            "x-72057594037927936-0000000007",
            "release-0000000007",
            "job-10000000007",
            "ß0000000007",
        ] {
            assert_eq!(number(name), Some(7), "{name}");
        }
        assert_eq!(number("x__lock__0000000007"), Some(7));
        assert_eq!(read_stranger("x__lock__0000000007", Accepted::CuratorAndKazoo), None);
        for name in [
            "",
            "notes",
            "locks",
            "leases",
            "lock-12",
            "000000007",
            "x-000000007",
            "notes-20260502",
            "9999999999",
            "+000000007",
            "-000000007",
            "schlo\u{df}\u{df}\u{df}\u{df}\u{df}",
            "lock-0000000007",
            "_c_5b0e7b4c-1f5e-4c59-8a55-d2f0a7b1c9a0-lock-0000000007",
            "_c_5b0e7b4c-1f5e-4c59-8a55-d2f0a7b1c9a0-lock--000000007",
            "_c_5b0e7b4c-1f5e-4c59-8a55-d2f0a7b1c9a0-__READ__0000000007",
            "_c_5b0e7b4c-1f5e-4c59-8a55-d2f0a7b1c9a0-__WRIT__0000000007",
            "_c_5b0e7b4c-1f5e-4c59-8a55-d2f0a7b1c9a0-lease-0000000007",
            "_c_5b0e7b4c-1f5e-4c59-8a55-d2f0a7b1c9a0-latch-0000000007",
        ] {
            assert_eq!(number(name), None, "{name}");
        }
    }

    #[test]
    fn a_stranger_is_in_the_way_of_those_behind_it() {
        let children =
            ["x-9-0000000003", "lock-0000000002", "lock-0000000004", "x-9-0000000005"].map(str::to_owned);
        let before = |own: &str| {
            let own = Contender::read(own, Accepted::Curator).unwrap();
            stranger_before(Some(&own), &children, Accepted::Curator)
        };
        assert_eq!(before("lock-0000000002"), None);
        assert_eq!(before("lock-0000000004"), Some("x-9-0000000003"));
        // At the end of the numbers, numbers no longer tell the order.
        assert_eq!(before("lock-2147483647"), Some("x-9-0000000003"));
        assert_eq!(before("lock--2147483648"), Some("x-9-0000000003"));
        assert_eq!(stranger_before(None, &children, Accepted::Curator), Some("x-9-0000000003"));
    }

    #[test]
    fn kazoos_names_count_when_asked_for() {
        for name in ["0123abcd__lock__0000000007", "0123abcd__rlock__0000000007"] {
            assert_eq!(Contender::read(name, Accepted::CuratorAndKazoo).unwrap().sequence, 7);
        }
        assert_eq!(Contender::read("x__lock__7", Accepted::CuratorAndKazoo), None);
    }
}
