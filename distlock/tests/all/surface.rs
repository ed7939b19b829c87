//! The names of the public face, and that each of them has one place.

use std::collections::BTreeSet;

/// What a service writes every day. A type that is seldom named belongs into a module.
const ROOT: [&str; 23] = [
    "ClientBuilder",
    "DistributedLock",
    "Election",
    "ErrorKind",
    "FencingToken",
    "Hold",
    "LockClient",
    "LockError",
    "LockGuard",
    "LockListener",
    "LockName",
    "LockOptions",
    "LossReason",
    "MultiLock",
    "Once",
    "Operation",
    "Owner",
    "RwLock",
    "Semaphore",
    "connect",
    "connect_with",
    "locked",
    "register",
];

const MODULES: [&str; 9] =
    ["blocking", "capabilities", "connection", "election", "events", "metrics", "spi", "status", "testing"];

/// The most names that a reader of the root's page takes in.
const MOST: usize = 26;

#[test]
fn the_root_has_what_a_service_writes_every_day_and_no_more() {
    let surface = Surface::of(include_str!("../../src/lib.rs"));
    assert_eq!(surface.root, ROOT);
    assert_eq!(surface.modules, MODULES);
    assert!(ROOT.len() <= MOST, "a name that is seldom written has its place in a module");
}

#[test]
fn each_name_has_one_place() {
    let surface = Surface::of(include_str!("../../src/lib.rs"));
    let mut seen: BTreeSet<_> = surface.root.iter().copied().collect();
    let twice: Vec<_> = surface.in_modules.iter().filter(|name| !seen.insert(name)).collect();
    assert!(twice.is_empty(), "exported from two modules: {twice:?}");
    for name in ["LeaderWatch", "LockEvent", "LockStatus", "Reach", "lease_of", "Backend", "ManualClock"] {
        assert!(seen.contains(name), "{name} is in a module");
    }
}

/// The names that the root file of the crate exports, sorted. The backends are not among them: each is a crate.
#[derive(Default)]
struct Surface<'a> {
    root: Vec<&'a str>,
    modules: Vec<&'a str>,
    in_modules: Vec<&'a str>,
}

impl<'a> Surface<'a> {
    fn of(source: &'a str) -> Self {
        let mut surface = Self::default();
        let starts = source.match_indices("pub ").map(|(start, _)| start);
        for start in starts {
            let line = source[..start].rsplit('\n').next().unwrap_or_default();
            let item = source[start..].trim_start_matches("pub ").trim_start_matches("async ");
            match (line, item.split_once(' ')) {
                ("", Some(("mod", item))) => surface.modules.extend(identifiers(item).next()),
                ("", Some(("fn", item))) => surface.root.extend(identifiers(item).next()),
                ("", Some(("use", item))) => surface.root.extend(imported(item)),
                ("    ", Some(("use", item))) => surface.in_modules.extend(imported(item)),
                _ => {}
            }
        }
        surface.modules.retain(|name| !name.starts_with("__"));
        surface.root.sort_unstable();
        surface.modules.sort_unstable();
        surface
    }
}

/// Returns the names that `a::b::{C, d}; …` imports.
fn imported(item: &str) -> impl Iterator<Item = &str> {
    let path = item.split(';').next().unwrap_or_default();
    identifiers(path.rsplit("::").next().unwrap_or_default())
}

fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.filter(|word| !word.is_empty())
}
