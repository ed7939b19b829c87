//! Contenders for a lock: the children of its directory, in their order.
//!
//! The client names its nodes as Curator does: `_c_` + a random UUID + `-` + a word + the sequence number that the server appends.
//!
//! * `lock-` is the word of Curator's `InterProcessMutex`;
//! * `__WRIT__` and `__READ__` are those of the two sides of its `InterProcessReadWriteLock`;
//! * `lease-` is that of a permit of its `InterProcessSemaphoreV2`.
//!
//! An exclusive attempt of ours has two nodes with neighbouring numbers, `lock-` and `__WRIT__`, so that both of Curator's locks
//! respect it. It keeps both when it goes on reading: names do not change, so a name says at most what a node excludes. The part
//! before the word matters only to the program that created the node, so nodes of older and other programs with the same ending count
//! too. A node without a number is not a contender: notes of an operator, directories. Nor are the nodes of Curator's other recipes,
//! which do not wait for a Curator lock either.
//!
//! Any other child with a number is a stranger. It may be a node of ZooKeeper's own recipe for locks (`x-` + session + `-` + number),
//! of kazoo without the option for it, or of a user's script. Its creator may consider it the holder of the lock, so attempts
//! behind it are refused.
//!
//! **The layout.** These nodes are those of the first layout. A later one that this client does not understand says so between the
//! UUID and the word, as `-v2-`; attempts behind such a node are refused.

use std::collections::HashMap;
use std::fmt::Write as _;

use lock_core::Mode;
use lock_entries::InLine;

/// The word of a mutex.
const MUTEX: &str = "lock-";

/// The word of a writer.
const WRITER: &str = "__WRIT__";

/// The word of a reader.
const READER: &str = "__READ__";

/// The word of a permit.
const LEASE: &str = "lease-";

/// The text that kazoo's `Lock`, `WriteLock` and `ReadLock` write before the number.
const KAZOO_NAMES: [&str; 2] = ["__lock__", "__rlock__"];

/// The texts before the number in Curator's other recipes.
const NO_LOCKS: [&str; 2] = [LEASE, "latch-"];

/// How many digits the server appends.
pub(crate) const DIGITS: usize = 10;

/// From this number on the server's counter is near its end or past it: it sticks at 2³¹ − 1 and gives numbers twice.
const END_OF_SEQUENCES: i64 = (1 << 31) - (1 << 16);

/// From this number on the client removes an empty directory, so that the counter starts again.
const WORTH_RESETTING: i64 = 1 << 30;

/// The newest layout of nodes that this client understands.
const LAYOUT: u32 = 1;

/// The programs whose nodes count as contenders, by their names. A client refuses all other nodes that are numbered like a holder's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Accepted {
    /// Ours and Curator's.
    #[default]
    Curator,
    /// Those of kazoo (the Python library) as well. kazoo needs to know our nodes, too:
    /// `Lock(…, extra_lock_patterns=["-lock-"])`.
    CuratorAndKazoo,
}

/// What a contender wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To hold the lock alone, as the owner of a mutex.
    Mutex,
    /// To hold the lock alone, as the writer of a read-write lock.
    Writer,
    /// To hold the lock beside other readers.
    Reader,
}

/// A node in the queue for the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) sequence: i64,
    /// The name of its node in the lock's directory.
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

impl Contender {
    /// Reads the name of a child; none if the child is not a contender.
    pub(crate) fn read(name: &str, accepted: Accepted) -> Option<Self> {
        let words = [(MUTEX, Kind::Mutex), (WRITER, Kind::Writer), (READER, Kind::Reader)];
        let curators = words.into_iter().find_map(|(word, kind)| Some((read_after(name, word)?, kind)));
        let (sequence, kind) = curators.or_else(|| match accepted {
            Accepted::Curator => None,
            Accepted::CuratorAndKazoo => {
                KAZOO_NAMES.iter().find_map(|word| Some((read_after(name, word)?, Kind::Mutex)))
            }
        })?;
        Some(Self { sequence, name: name.to_owned(), kind })
    }

    /// Whether another node may have the same number; then only the order of creation counts.
    pub(crate) fn is_at_the_end_of_sequences(&self) -> bool {
        is_at_the_end(self.sequence)
    }

    /// How it holds or wants the lock, as far as its name says.
    pub(crate) fn mode(&self) -> Mode {
        if self.kind == Kind::Reader { Mode::Shared } else { Mode::Exclusive }
    }

    /// The protection id in the name; none in names that have no random part.
    fn protection_id(&self) -> Option<&str> {
        protection_id_in(&self.name)
    }
}

/// The length of a protection id: `_c_`, a UUID and `-`.
const PROTECTION_ID_LENGTH: usize = 40;

/// The protection id at the beginning of a name, if there is one.
pub(crate) fn protection_id_in(name: &str) -> Option<&str> {
    name.get(..PROTECTION_ID_LENGTH)
        .filter(|protection_id| protection_id.starts_with("_c_") && protection_id.ends_with('-'))
}

/// The number after the last occurrence of a word, if the name ends with it.
fn read_after(name: &str, word: &str) -> Option<i64> {
    read_sequence(name.rsplit_once(word)?.1)
}

/// Reads the digits that the server appends: ten or more. After an overflow of the counter, a minus takes the place of one digit.
pub(crate) fn read_sequence(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = text.len() >= DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

fn is_at_the_end(sequence: i64) -> bool {
    !(0..END_OF_SEQUENCES).contains(&sequence)
}

/// Whether the counter of the directory of this node should start again.
pub(crate) fn is_worth_resetting(name: &str) -> bool {
    let sequence = [MUTEX, WRITER, READER, LEASE].into_iter().find_map(|word| read_after(name, word));
    sequence.is_some_and(|sequence| !(0..WORTH_RESETTING).contains(&sequence))
}

/// Stands for a number that other nodes may have as well.
pub(crate) const AT_THE_END: i64 = i64::MAX;

/// The number of a permit that is taken; none if the node is no permit.
pub(crate) fn read_lease(name: &str) -> Option<i64> {
    let sequence = read_after(name, LEASE)?;
    Some(if is_at_the_end(sequence) { AT_THE_END } else { sequence })
}

/// How many permits a node of ours takes, and how many there are: `of3` and `2of3` after the protection id.
pub(crate) fn number_of_permits(name: &str) -> Option<(u32, u32)> {
    let (text, _) = name.strip_prefix(protection_id_in(name)?)?.split_once('-')?;
    let (take, of) = text.split_once("of")?;
    Some((if take.is_empty() { 1 } else { take.parse().ok()? }, of.parse().ok()?))
}

/// One that holds the lock or waits for it, with the nodes of its attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entrant {
    /// The first node: the one that others watch, and by whose name the entrant is known.
    pub(crate) node: Contender,
    /// The writer's node of an exclusive attempt that has both.
    pub(crate) other_half: Option<Contender>,
}

impl InLine for Entrant {
    fn name(&self) -> &str {
        &self.node.name
    }

    fn mode(&self) -> Mode {
        self.node.mode()
    }
}

impl Entrant {
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.node).chain(&self.other_half).map(|node| node.name.as_str())
    }

    /// Whether it is a writer of Curator's, which may leave a reader in its place.
    pub(crate) fn is_curators_writer(&self) -> bool {
        self.node.kind == Kind::Writer
    }
}

/// Joins the nodes of each attempt, in the order of the first ones.
pub(crate) fn entrants(contenders: Vec<Contender>) -> Vec<Entrant> {
    let mut halves = HashMap::new();
    for (place, contender) in contenders.iter().enumerate() {
        if let (Kind::Mutex, Some(protection_id)) = (contender.kind, contender.protection_id()) {
            halves.entry(protection_id.to_owned()).or_insert(place);
        }
    }
    let mut found: Vec<(usize, Entrant)> = Vec::with_capacity(contenders.len());
    let mut others = Vec::new();
    for (place, contender) in contenders.into_iter().enumerate() {
        let first = contender
            .protection_id()
            .filter(|_| contender.kind == Kind::Writer)
            .and_then(|protection_id| halves.remove(protection_id));
        match first {
            Some(first) => others.push((first, contender)),
            None => found.push((place, Entrant { node: contender, other_half: None })),
        }
    }
    for (first, other) in others {
        if let Ok(index) = found.binary_search_by_key(&first, |(place, _)| *place) {
            found[index].1.other_half = Some(other);
        }
    }
    found.into_iter().map(|(_, entrant)| entrant).collect()
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

/// The first of the children that is before this contender and of which it is unknown whether it has the lock: a stranger, or one of a
/// layout that this client does not understand.
pub(crate) fn unknown_before<'a>(
    own: Option<&Contender>,
    children: &'a [String],
    accepted: Accepted,
) -> Option<&'a str> {
    let stands_before =
        |number: i64| own.is_none_or(|own| own.is_at_the_end_of_sequences() || number < own.sequence);
    let number = |name: &str| {
        if is_newer(name) {
            Some(Contender::read(name, accepted).map_or(i64::MIN, |newer| newer.sequence))
        } else {
            read_stranger(name, accepted)
        }
    };
    let unknown = children.iter().filter_map(|name| Some((number(name)?, name.as_str())));
    unknown.filter(|(number, _)| stands_before(*number)).min().map(|(_, name)| name)
}

/// Whether this is a node of a layout that this client does not understand.
pub(crate) fn is_newer(name: &str) -> bool {
    layout_of(name) > LAYOUT
}

/// The layout that the name of a node of ours tells, between its protection id and the word; the first one if it tells none.
fn layout_of(name: &str) -> u32 {
    let Some(rest) = protection_id_in(name).and_then(|protection_id| name.strip_prefix(protection_id)) else {
        return LAYOUT;
    };
    let version = rest.split_once('-').and_then(|(text, _)| text.strip_prefix('v')?.parse().ok());
    version.unwrap_or(LAYOUT)
}

/// The protection id in the names of the nodes of one attempt in one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProtectionId(String);

impl ProtectionId {
    /// A protection id from 128 random bits, in the form of a random UUID (RFC 9562, version 4), so that no other attempt has it.
    pub(crate) fn of(random: u128) -> Self {
        let number = (random & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
        let digits = format!("{number:032x}");
        let mut text = String::with_capacity(PROTECTION_ID_LENGTH);
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

    /// The names of the nodes of an exclusive attempt, without their numbers.
    pub(crate) fn exclusive(&self) -> Vec<String> {
        vec![format!("{}{MUTEX}", self.0), format!("{}{WRITER}", self.0)]
    }

    /// The name of a reader's node, without its number.
    pub(crate) fn shared(&self) -> Vec<String> {
        vec![format!("{}{READER}", self.0)]
    }

    /// The names of the nodes of one that holds permits, without their numbers.
    pub(crate) fn leases(&self, take: u32, of: u32) -> Vec<String> {
        (0..take).map(|_| format!("{}of{of}-{LEASE}", self.0)).collect()
    }

    /// The name of the node of one that waits for permits, without its number.
    pub(crate) fn waiting(&self, take: u32, of: u32) -> Vec<String> {
        vec![format!("{}{take}of{of}-{MUTEX}", self.0)]
    }

    /// Whether the node has this protection id.
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
    fn a_protection_id_is_a_random_uuid_between_curators_words() {
        assert_eq!(
            ProtectionId::of(0).exclusive(),
            [
                "_c_00000000-0000-4000-8000-000000000000-lock-",
                "_c_00000000-0000-4000-8000-000000000000-__WRIT__"
            ]
        );
        assert_eq!(
            ProtectionId::of(u128::MAX).shared(),
            ["_c_ffffffff-ffff-4fff-bfff-ffffffffffff-__READ__"]
        );
        let name = format!("{}0000000007", ProtectionId::of(5).shared()[0]);
        assert!(ProtectionId::of(5).is_on(&name) && !ProtectionId::of(6).is_on(&name));
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
    fn numbers_past_the_end_are_read_and_reported() {
        let read = |name: &str| Contender::read(name, Accepted::Curator).unwrap();
        assert_eq!(read("lock-0000000001").sequence, 1);
        assert_eq!(read("lock--2147483648").sequence, -2_147_483_648);
        assert_eq!(read("lock--000000005").sequence, -5);
        assert_eq!(read("lock-0000000000000000001").sequence, 1);
        assert!(!is_worth_resetting("lock-1073741823") && is_worth_resetting("lock-1073741824"));
        assert!(is_worth_resetting("x-lease-1073741824") && is_worth_resetting("__READ__-000000005"));
        assert!(!read("lock-2147418111").is_at_the_end_of_sequences());
        assert!(read("lock-2147418112").is_at_the_end_of_sequences());
        assert!(read("lock--2147483648").is_at_the_end_of_sequences());
    }

    #[test]
    fn an_unknown_number_makes_a_stranger() {
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
            "__READ__0000000007",
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
            unknown_before(Some(&own), &children, Accepted::Curator)
        };
        assert_eq!(before("lock-0000000002"), None);
        assert_eq!(before("lock-0000000004"), Some("x-9-0000000003"));
        // At the end of the numbers, numbers no longer tell the order.
        assert_eq!(before("lock-2147483647"), Some("x-9-0000000003"));
        assert_eq!(before("lock--2147483648"), Some("x-9-0000000003"));
        assert_eq!(unknown_before(None, &children, Accepted::Curator), Some("x-9-0000000003"));
    }

    const UUID: &str = "_c_5b0e7b4c-1f5e-4c59-8a55-d2f0a7b1c9a0-";

    fn all(names: &[String]) -> Vec<Entrant> {
        entrants(contenders(names, Accepted::Curator))
    }

    #[test]
    fn an_exclusive_attempt_is_one_entrant_with_two_nodes() {
        let other = UUID.replace('5', "6");
        let children = [
            format!("{UUID}lock-0000000003"),
            format!("{UUID}__WRIT__0000000004"),
            format!("{other}__WRIT__0000000001"),
            "lock-0000000000".to_owned(),
            "__WRIT__0000000007".to_owned(),
            format!("{other}__READ__0000000009"),
        ];
        let found = all(&children);
        let first_names: Vec<_> = found.iter().map(Entrant::name).collect();
        let expected = [&*children[3], &children[2], &children[0], &children[4], &children[5]];
        assert_eq!(first_names, expected);
        assert_eq!(found[2].names().collect::<Vec<_>>(), [&*children[0], &children[1]]);
        let may_leave_a_reader: Vec<_> = found.iter().map(Entrant::is_curators_writer).collect();
        assert_eq!(may_leave_a_reader, [false, true, false, true, false]);
    }

    #[test]
    fn the_number_of_permits_is_in_the_names() {
        let protection_id = ProtectionId::of(5);
        let lease = format!("{}0000000007", protection_id.leases(2, 3)[1]);
        let waiting = format!("{}0000000008", protection_id.waiting(2, 3)[0]);
        assert_eq!((number_of_permits(&lease), number_of_permits(&waiting)), (Some((1, 3)), Some((2, 3))));
        assert_eq!(number_of_permits(&format!("{UUID}lease-0000000007")), None);
        assert_eq!(read_lease(&lease), Some(7));
        assert_eq!(read_lease("_c_x-lease-2147483647"), Some(AT_THE_END));
        assert_eq!(read_lease(&waiting), None);
        assert!(!is_newer(&lease) && is_newer(&lease.replace("of3", "v2-of3")));
    }

    #[test]
    fn a_newer_layout_is_in_the_way_of_those_behind_it() {
        let newer = format!("{UUID}v2-lock-0000000003");
        let children = [format!("{UUID}lock-0000000001"), newer.clone(), "v3-lock-0000000000".to_owned()];
        let before = |own: &str| {
            let own = Contender::read(own, Accepted::Curator).unwrap();
            unknown_before(Some(&own), &children, Accepted::Curator)
        };
        assert_eq!(before("lock-0000000002"), None);
        assert_eq!(before("__READ__0000000004"), Some(&*newer));
        assert_eq!(unknown_before(None, &children[..1], Accepted::Curator), None);
    }

    #[test]
    fn kazoos_names_count_when_asked_for() {
        for name in ["0123abcd__lock__0000000007", "0123abcd__rlock__0000000007"] {
            assert_eq!(Contender::read(name, Accepted::CuratorAndKazoo).unwrap().sequence, 7);
        }
        assert_eq!(Contender::read("x__lock__7", Accepted::CuratorAndKazoo), None);
    }
}
