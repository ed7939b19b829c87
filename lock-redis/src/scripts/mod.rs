//! The scripts that make up the protocol, each in a file beside this one.

use std::sync::LazyLock;

use lock_core::Operation;

/// One script: what the server does in one step for one operation.
///
/// The server identifies a script by its digest, also in its slow log and in `MONITOR`.
#[derive(Debug)]
pub struct Script {
    operation: Operation,
    name: &'static str,
    text: LazyLock<String>,
    digest: LazyLock<String>,
}

impl Script {
    /// The operation that the script implements.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The script's name: `acquire`, `renew` and `release`, each also with `_shared`; `acquire_series`, `downgrade`, `cancel`, `inspect`, `break`,
    /// `describe` or `remember`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether most clients never call it, so that it is loaded when it is needed.
    pub(crate) fn is_rare(&self) -> bool {
        use Operation::{Break, Describe, Downgrade, Remember};
        matches!(self.operation, Break | Describe | Downgrade | Remember) || self.name == "acquire_series"
    }

    /// The script's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The SHA-1 of the text in hexadecimal digits, as in `EVALSHA`.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// What scripts include. The functions that serve waiters come after the usual case, in which there are none: the server creates
/// each function anew in each call.
const PARTS: [(&str, &str); 8] = [
    ("--#include queue.lua\n", include_str!("queue.lua")),
    ("--#include again.lua\n", include_str!("again.lua")),
    ("--#include leave.lua\n", include_str!("leave.lua")),
    ("--#include lost.lua\n", include_str!("lost.lua")),
    ("--#include promote.lua\n", include_str!("promote.lua")),
    ("--#include grant.lua\n", include_str!("grant.lua")),
    ("--#include place.lua\n", include_str!("place.lua")),
    ("--#include time.lua\n", include_str!("time.lua")),
];

/// Puts the common beginning before a script, and the parts into it. Leaves comments and indentation out, because each
/// connection sends the usual scripts.
fn assemble(script: &str) -> String {
    let whole = [include_str!("begin.lua"), script].concat();
    let whole = PARTS.iter().fold(whole, |whole, (line, part)| whole.replace(line, part));
    let lines = whole.lines().map(str::trim_start);
    lines.filter(|line| !line.is_empty() && !line.starts_with("--")).flat_map(|line| [line, "\n"]).collect()
}

macro_rules! script {
    ($operation:ident, $name:literal) => {
        Script {
            operation: Operation::$operation,
            name: $name,
            text: LazyLock::new(|| assemble(include_str!(concat!($name, ".lua")))),
            digest: LazyLock::new(|| {
                redis::Script::new(&assemble(include_str!(concat!($name, ".lua")))).get_hash().to_owned()
            }),
        }
    };
}

static SCRIPTS: [Script; 13] = [
    script!(Acquire, "acquire"),
    script!(Renew, "renew"),
    script!(Release, "release"),
    script!(Cancel, "cancel"),
    script!(Inspect, "inspect"),
    script!(Break, "break"),
    script!(Describe, "describe"),
    script!(Remember, "remember"),
    script!(Acquire, "acquire_shared"),
    script!(Renew, "renew_shared"),
    script!(Release, "release_shared"),
    script!(Downgrade, "downgrade"),
    script!(Acquire, "acquire_series"),
];

pub(crate) static ACQUIRE: &Script = &SCRIPTS[0];
pub(crate) static RENEW: &Script = &SCRIPTS[1];
pub(crate) static RELEASE: &Script = &SCRIPTS[2];
pub(crate) static CANCEL: &Script = &SCRIPTS[3];
pub(crate) static INSPECT: &Script = &SCRIPTS[4];
pub(crate) static BREAK: &Script = &SCRIPTS[5];
pub(crate) static DESCRIBE: &Script = &SCRIPTS[6];
pub(crate) static REMEMBER: &Script = &SCRIPTS[7];
pub(crate) static ACQUIRE_SHARED: &Script = &SCRIPTS[8];
pub(crate) static RENEW_SHARED: &Script = &SCRIPTS[9];
pub(crate) static RELEASE_SHARED: &Script = &SCRIPTS[10];
pub(crate) static DOWNGRADE: &Script = &SCRIPTS[11];
pub(crate) static ACQUIRE_SERIES: &Script = &SCRIPTS[12];

/// All scripts, so that an operator can tell what an `EVALSHA` in the server's slow log is.
///
/// ```
/// for script in lock_redis::scripts() {
///     println!("{}  {}", script.digest(), script.name());
/// }
/// ```
pub fn scripts() -> &'static [Script] {
    &SCRIPTS
}
