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

    /// The script's name: `acquire`, `renew`, `release`, `cancel`, `inspect`, `break`, `describe` or `remember`.
    pub fn name(&self) -> &'static str {
        self.name
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

/// Puts the common beginning before a script. The functions that serve waiters come after the usual case, in which there are
/// none: the server creates each function anew in each call.
fn assemble(script: &str) -> String {
    let whole = [include_str!("grant.lua"), script].concat();
    whole.replace("--#include promote.lua\n", include_str!("promote.lua"))
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

static SCRIPTS: [Script; 8] = [
    script!(Acquire, "acquire"),
    script!(Renew, "renew"),
    script!(Release, "release"),
    script!(Cancel, "cancel"),
    script!(Inspect, "inspect"),
    script!(Break, "break"),
    script!(Describe, "describe"),
    script!(Remember, "remember"),
];

pub(crate) static ACQUIRE: &Script = &SCRIPTS[0];
pub(crate) static RENEW: &Script = &SCRIPTS[1];
pub(crate) static RELEASE: &Script = &SCRIPTS[2];
pub(crate) static CANCEL: &Script = &SCRIPTS[3];
pub(crate) static INSPECT: &Script = &SCRIPTS[4];
pub(crate) static BREAK: &Script = &SCRIPTS[5];
pub(crate) static DESCRIBE: &Script = &SCRIPTS[6];
pub(crate) static REMEMBER: &Script = &SCRIPTS[7];

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
