//! The texts of the scripts, as shipped or with one rule removed.
use std::collections::BTreeMap;

const TRUE: [(&str, &str); 10] = [
    (GRANT, include_str!("../../src/scripts/grant.lua")),
    (PROMOTE, include_str!("../../src/scripts/promote.lua")),
    (ACQUIRE, include_str!("../../src/scripts/acquire.lua")),
    (RENEW, include_str!("../../src/scripts/renew.lua")),
    (RELEASE, include_str!("../../src/scripts/release.lua")),
    (CANCEL, include_str!("../../src/scripts/cancel.lua")),
    (INSPECT, include_str!("../../src/scripts/inspect.lua")),
    (BREAK, include_str!("../../src/scripts/break.lua")),
    (DESCRIBE, include_str!("../../src/scripts/describe.lua")),
    (REMEMBER, include_str!("../../src/scripts/remember.lua")),
];

pub(crate) const GRANT: &str = "grant";
pub(crate) const PROMOTE: &str = "promote";
pub(crate) const ACQUIRE: &str = "acquire";
pub(crate) const RENEW: &str = "renew";
pub(crate) const RELEASE: &str = "release";
pub(crate) const CANCEL: &str = "cancel";
pub(crate) const INSPECT: &str = "inspect";
pub(crate) const BREAK: &str = "break";
pub(crate) const DESCRIBE: &str = "describe";
pub(crate) const REMEMBER: &str = "remember";

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
        let whole = [self.files[GRANT].as_str(), &self.files[name]].concat();
        whole.replace("--#include promote.lua\n", &self.files[PROMOTE])
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
