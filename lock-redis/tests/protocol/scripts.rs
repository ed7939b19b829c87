//! The texts of the scripts, as shipped or with one rule removed.
use std::collections::BTreeMap;

const TRUE: [(&str, &str); 24] = [
    (BEGIN, include_str!("../../src/scripts/parts/begin.lua")),
    (GRANT, include_str!("../../src/scripts/parts/grant.lua")),
    (PROMOTE, include_str!("../../src/scripts/parts/promote.lua")),
    (LEAVE, include_str!("../../src/scripts/parts/leave.lua")),
    (AGAIN, include_str!("../../src/scripts/parts/again.lua")),
    (LOST, include_str!("../../src/scripts/parts/lost.lua")),
    (PLACE, include_str!("../../src/scripts/parts/place.lua")),
    (WAITER, include_str!("../../src/scripts/parts/waiter.lua")),
    (TOKEN, include_str!("../../src/scripts/parts/token.lua")),
    (TOKEN_USUAL, include_str!("../../src/scripts/parts/token_usual.lua")),
    (TIME, include_str!("../../src/scripts/parts/time.lua")),
    (QUEUE, include_str!("../../src/scripts/parts/queue.lua")),
    (ACQUIRE, include_str!("../../src/scripts/acquire.lua")),
    (ACQUIRE_SHARED, include_str!("../../src/scripts/acquire_shared.lua")),
    (RENEW, include_str!("../../src/scripts/renew.lua")),
    (RELEASE, include_str!("../../src/scripts/release.lua")),
    (RELEASE_SHARED, include_str!("../../src/scripts/release_shared.lua")),
    (DOWNGRADE, include_str!("../../src/scripts/downgrade.lua")),
    (CANCEL, include_str!("../../src/scripts/cancel.lua")),
    (INSPECT, include_str!("../../src/scripts/inspect.lua")),
    (BREAK, include_str!("../../src/scripts/break.lua")),
    (DESCRIBE, include_str!("../../src/scripts/describe.lua")),
    (REMEMBER, include_str!("../../src/scripts/remember.lua")),
    (GREET, include_str!("../../src/scripts/greet.lua")),
];

pub(crate) const BEGIN: &str = "begin";
pub(crate) const GRANT: &str = "grant";
pub(crate) const PROMOTE: &str = "promote";
pub(crate) const LEAVE: &str = "leave";
pub(crate) const AGAIN: &str = "again";
pub(crate) const LOST: &str = "lost";
pub(crate) const PLACE: &str = "place";
pub(crate) const WAITER: &str = "waiter";
pub(crate) const TOKEN: &str = "token";
pub(crate) const TOKEN_USUAL: &str = "token_usual";
pub(crate) const TIME: &str = "time";
pub(crate) const QUEUE: &str = "queue";
pub(crate) const ACQUIRE: &str = "acquire";
pub(crate) const ACQUIRE_SHARED: &str = "acquire_shared";
pub(crate) const RENEW: &str = "renew";
pub(crate) const RELEASE: &str = "release";
pub(crate) const RELEASE_SHARED: &str = "release_shared";
pub(crate) const DOWNGRADE: &str = "downgrade";
pub(crate) const CANCEL: &str = "cancel";
pub(crate) const INSPECT: &str = "inspect";
pub(crate) const BREAK: &str = "break";
pub(crate) const DESCRIBE: &str = "describe";
pub(crate) const REMEMBER: &str = "remember";
pub(crate) const GREET: &str = "greet";

/// A complete set of scripts.
#[derive(Clone)]
pub(crate) struct Scripts {
    files: BTreeMap<&'static str, String>,
}

impl Scripts {
    /// The scripts that the crate sends.
    pub(crate) fn as_shipped() -> Self {
        Self { files: TRUE.iter().map(|(name, text)| (*name, (*text).to_owned())).collect() }
    }

    /// The text that is sent to the server under this name.
    pub(crate) fn text(&self, name: &str) -> String {
        let whole = [self.files[BEGIN].as_str(), &self.files[name]].concat();
        let whole = [QUEUE, AGAIN, LEAVE, LOST, PROMOTE, GRANT, PLACE, WAITER, TOKEN, TOKEN_USUAL, TIME]
            .into_iter()
            .fold(whole, |whole, part| whole.replace(&format!("--#include {part}.lua\n"), &self.files[part]));
        let lines = whole.lines().map(str::trim_start);
        lines
            .filter(|line| !line.is_empty() && !line.starts_with("--"))
            .flat_map(|line| [line, "\n"])
            .collect()
    }

    /// The files themselves, by name.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.files.iter().map(|(name, text)| (*name, text.as_str()))
    }

    /// Replaces a piece of one file, which must occur exactly once.
    pub(crate) fn with(mut self, file: &'static str, piece: &str, replacement: &str) -> Result<Self, String> {
        let text = &self.files[file];
        let found = text.matches(piece).count();
        if found != 1 {
            return Err(format!("{file}.lua has {found} times, and not once: {piece}"));
        }
        let changed = text.replace(piece, replacement);
        self.files.insert(file, changed);
        Ok(self)
    }
}
