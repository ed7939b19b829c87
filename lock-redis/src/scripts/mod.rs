//! The scripts that make up the protocol, each in a file beside this one; what several include is in `parts`. The server executes each
//! call atomically.
//!
//! # Keys
//! All keys of a lock share a hash tag, `PREFIX:{NAME}`. A semaphore's suffixes begin with `:s`.
//!
//! | key | type | what it is | how long |
//! |---|---|---|---|
//! | `:l` | string | the exclusive hold: `id v1 token since channel holder` | the lease |
//! | `:q` | sorted set | by score: `/5` with the number of permits that are taken (a semaphore alone); the ids of those that hold the lock together, by the end of their lease in milliseconds; the ids of the waiters, by the server's time at arrival in microseconds | the longest lease |
//! | `:w` | hash | for each holder that shares `token since channel holder`, for each waiter `deadline beat channel holder` | the longest lease |
//! | `:f` | string | the fence: `v1 token`, the last token | a day after the last grant, or after the token itself if that is ahead of the clock |
//! | `:b` | sorted set | the ids of broken holds, for their next renewal | an hour after the last break |
//! | `:m:SLOT` | string | a slot that is remembered, empty for the pause after a hold | as long as the call said |
//!
//! Behind sentinels a prefix has one key more, `PREFIX:primary`: a string that names the primary (`greet.lua`), and stays. In a cluster
//! each node has one, `PREFIX:primary:{TAG}`, with a number for the tag that puts it into the last hash slot of the node.
//!
//! An id has 128 random bits and identifies one *attempt*. It ends with the mode: nothing for an exclusive attempt, `+99` for one
//! that reserves 99 tokens more than its own, `:r` for a reader, `:2/5` for two of five permits. `v1` is the layout of all keys: a
//! client that finds another one in `:l` or `:f` refuses the lock, so a release that changes the layout leaves its mark in both.
//! A key of another type, or another text in `:f`, is never changed: the scripts write nothing, and the error names it.
//!
//! # The hand-off
//! It removes the holders whose lease is over and takes the first waiter from the queue. It skips one whose deadline has passed or
//! whose channel has no subscriber. Otherwise it writes the hold for that waiter, until the waiter's own deadline, and publishes
//! `id granted beat token` on its channel. It goes on until a waiter does not fit, and does not pass that one over. **Every script
//! that writes does this if no client holds the lock exclusively**, so a lock with waiters is free only after a lease has run out,
//! and only until the first waiter asks. One call checks 100 waiters and removes 100 holders at most, and says if there are more.
//!
//! # Heartbeats
//! A waiter sends `acquire` as a heartbeat once per renewal interval, with the moment of sending, by the client's clock, which comes
//! back with a pushed grant. That extends its deadline, updates its channel, and takes the
//! lock if it is free. If the holder's lease ends before the next heartbeat is due, the first waiter asks 1 ms after that end, and
//! each further one 100 ms after the one before it, in case that one is dead. **A heartbeat never makes a place.** Otherwise this
//! could happen: the server pushes a grant, which stays unread. Its lease ends, and another client acquires the lock. The heartbeat
//! queues the first client again with a fresh anchor. Then that client reads the old push and believes it. A client whose place is
//! lost asks with a new id and the score of its old place, and is queued before all clients that came later.
//!
//! # Tokens
//! `parts/token_usual.lua` and `parts/token.lua` mint them: max(last + 1, the server's time in microseconds). A counter alone falls to zero when the data is lost, and must be
//! kept for ever; the time alone repeats when the clock steps back. Together they fail only when both happen. With `local_handoff`
//! a grant takes as many tokens as holds may follow; the release sets the fence back to the last one that was used.
//!
//! # Why they are written this way
//! * *The usual case comes first, before any function is defined*: in each call the server creates every function of a script again,
//!   which is measurable beside commands that take a microsecond. For the same reason the numbers in calls are texts.
//! * *The hold is a string with a time to live.* One `GET` shows it, one `SET … NX PX` creates it with its end.
//! * *Readers are in the queue's key.* A lock without readers has no more keys than it needs, and where the key is missing, there are
//!   neither readers nor waiters. The score tells them apart: microseconds are a thousand times milliseconds.
//! * *An id says its mode*, so that the permits of a holder whose lease is over come back even if `:w` was deleted.

use std::sync::OnceLock;

use lock_core::Operation;

/// One script: what the server does in one step for one operation.
///
/// The server identifies a script by its digest, also in its slow log and in `MONITOR`.
#[derive(Debug)]
pub struct Script {
    operation: Operation,
    name: &'static str,
    source: &'static str,
    text_and_digest: OnceLock<(String, String)>,
}

impl Script {
    /// The operation that the script implements.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The script's name: `acquire` and `release`, each also with `_shared`; `renew`, `downgrade`, `cancel`, `inspect`, `break`,
    /// `describe`, `remember` or `greet`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The script's text.
    pub fn text(&self) -> &str {
        &self.text_and_digest().0
    }

    /// The SHA-1 of the text in hexadecimal digits, as in `EVALSHA`.
    pub fn digest(&self) -> &str {
        &self.text_and_digest().1
    }

    fn text_and_digest(&self) -> &(String, String) {
        self.text_and_digest.get_or_init(|| {
            let text = assemble(self.source);
            let digest = redis::Script::new(&text).get_hash().to_owned();
            (text, digest)
        })
    }
}

macro_rules! parts {
    ($($name:literal)*) => {
        [$((concat!("--#include ", $name, ".lua\n"), include_str!(concat!("parts/", $name, ".lua")))),*]
    };
}

/// What scripts include. The functions that serve waiters come after the usual case, in which there are none: the server creates
/// each function anew in each call.
const PARTS: [(&str, &str); 11] =
    parts!["queue" "again" "leave" "lost" "promote" "grant" "place" "waiter" "token" "token_usual" "time"];

/// Puts the common beginning before a script, and the parts into it. Leaves comments and indentation out, because each
/// connection sends the scripts.
fn assemble(script: &str) -> String {
    let whole = [include_str!("parts/begin.lua"), script].concat();
    let whole = PARTS.iter().fold(whole, |whole, (line, part)| whole.replace(line, part));
    let lines = whole.lines().map(str::trim_start);
    lines.filter(|line| !line.is_empty() && !line.starts_with("--")).flat_map(|line| [line, "\n"]).collect()
}

macro_rules! scripts {
    ($($variable:ident: $operation:ident, $name:literal;)*) => {
        $(pub(crate) static $variable: Script = Script {
            operation: Operation::$operation,
            name: $name,
            source: include_str!(concat!($name, ".lua")),
            text_and_digest: OnceLock::new(),
        };)*
        static SCRIPTS: &[&Script] = &[$(&$variable),*];
    };
}

scripts! {
    ACQUIRE: Acquire, "acquire";
    ACQUIRE_SHARED: Acquire, "acquire_shared";
    RENEW: Renew, "renew";
    RELEASE: Release, "release";
    RELEASE_SHARED: Release, "release_shared";
    DOWNGRADE: Downgrade, "downgrade";
    CANCEL: Cancel, "cancel";
    INSPECT: Inspect, "inspect";
    BREAK: Break, "break";
    DESCRIBE: Describe, "describe";
    REMEMBER: Remember, "remember";
    GREET: Connect, "greet";
}

/// All scripts, so that an operator can tell what an `EVALSHA` in the server's slow log is.
///
/// ```
/// for script in lock_redis::scripts() {
///     println!("{}  {}", script.digest(), script.name());
/// }
/// ```
pub fn scripts() -> &'static [&'static Script] {
    SCRIPTS
}
