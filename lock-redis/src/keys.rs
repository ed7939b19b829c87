//! The names of a lock's keys at the server.

use std::fmt;
use std::num::NonZeroU32;

use lock_core::{AcquireRequest, AttemptId, LockKind, Mode, PhysicalName};
use redis::{Cmd, RedisWrite, ToRedisArgs};

use crate::options::RedisOptions;
use crate::scripts::Script;

/// The keys of one lock, or of one semaphore. They share a hash tag, which keeps them on one node.
pub(crate) struct Keys {
    /// What all of them begin with.
    start: String,
    /// The hash slot that they share in a cluster; 0 without one.
    pub(crate) hash_slot: u16,
}

/// The hold, the queue, the waiters, the fence and the marks of broken holds, in the order in which the scripts take them.
const SUFFIXES: [&str; 5] = [":l", ":q", ":w", ":f", ":b"];

/// Room for the words of a call of `acquire`, which has the most, and for their usual length in bytes.
const WORDS: usize = 13;
const BYTES: usize = 512;

impl Keys {
    pub(crate) fn of(options: &RedisOptions, name: &PhysicalName, kind: LockKind) -> Self {
        let part = if kind == LockKind::Semaphore { ":s" } else { "" };
        let hash_slot = if options.is_cluster() { hash_slot(name.as_str()) } else { 0 };
        let start = format!("{}:{{{}}}{part}", options.server.prefix, name.as_str());
        Self { start, hash_slot }
    }

    /// Builds the call of `script` for this lock, without the script's own arguments.
    pub(crate) fn call(&self, script: &Script) -> Cmd {
        let mut command = Cmd::with_capacity(WORDS, BYTES);
        command.arg("EVALSHA").arg(script.digest()).arg(SUFFIXES.len());
        for suffix in SUFFIXES {
            command.write_arg_fmt(format_args!("{}{suffix}", self.start));
        }
        command
    }

    /// Builds the call of `script` for the key of a slot. A slot is any text: it is the end of the key.
    pub(crate) fn call_for_slot(&self, script: &Script, slot: &str) -> Cmd {
        call_with(script, format!("{}:m:{slot}", self.start))
    }
}

/// The pattern of the keys that show which locks are in use: their holds and queues.
pub(crate) fn pattern(prefix: &str) -> String {
    let special = ['*', '?', '[', ']', '\\'];
    let escaped = |character| special.contains(&character).then_some('\\').into_iter().chain([character]);
    prefix.chars().flat_map(escaped).collect::<String>() + ":{*}*:[lq]"
}

/// The name and kind of what has this hold or queue.
pub(crate) fn owner_of(prefix: &str, key: &str) -> Option<(String, LockKind)> {
    let (name, part) = key.strip_prefix(prefix)?.strip_prefix(":{")?.split_once('}')?;
    let kind = match part {
        ":l" | ":q" => LockKind::Lock,
        ":s:l" | ":s:q" => LockKind::Semaphore,
        _ => return None,
    };
    Some((name.to_owned(), kind))
}

/// Builds the call of `script` for the note of all locks with this prefix; in a cluster, of those at the node that has this hash slot.
pub(crate) fn call_for_prefix(script: &Script, prefix: &str, slot: Option<u16>) -> Cmd {
    let tag = |slot| (0..1_u32 << 24).map(|number| number.to_string()).find(|tag| hash_slot(tag) == slot);
    let tag = slot.and_then(tag).map(|tag| format!(":{{{tag}}}")).unwrap_or_default();
    call_with(script, format!("{prefix}:primary{tag}"))
}

/// The slot to which a cluster assigns a hash tag: CRC-16/XMODEM.
pub(crate) fn hash_slot(tag: &str) -> u16 {
    let shift = |crc: u16| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    tag.bytes().fold(0, |crc, byte| (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| shift(crc))) % 16_384
}

fn call_with(script: &Script, key: String) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script.digest()).arg(1).arg(key);
    command
}

/// The id of an attempt at the server, which says how it holds or waits, and for how many sections it reserves tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdAtServer {
    pub(crate) attempt: AttemptId,
    pub(crate) mode: Mode,
    pub(crate) sections: NonZeroU32,
}

impl IdAtServer {
    pub(crate) fn of(request: &AcquireRequest) -> Self {
        Self { attempt: request.id(), mode: request.mode(), sections: request.sections() }
    }
}

impl fmt::Display for IdAtServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.attempt;
        match (self.mode, self.sections.get() - 1) {
            (Mode::Shared, _) => write!(formatter, "{id}:r"),
            (Mode::Permits { take, of }, _) => write!(formatter, "{id}:{take}/{of}"),
            (_, 0) => write!(formatter, "{id}"),
            (_, following) => write!(formatter, "{id}+{following}"),
        }
    }
}

impl ToRedisArgs for IdAtServer {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg_fmt(self);
    }
}

/// How an id at the server holds or waits.
pub(crate) fn mode_of(id: &str) -> Mode {
    match id.rsplit_once(':').map(|(_, mode)| mode) {
        Some("r") => Mode::Shared,
        mode => mode.and_then(permits).unwrap_or(Mode::Exclusive),
    }
}

fn permits(text: &str) -> Option<Mode> {
    let (take, of) = text.split_once('/')?;
    Some(Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use lock_core::LockName;

    use super::*;
    use crate::backend::NAMES;

    fn keys(name: &str) -> Vec<String> {
        let physical = NAMES.apply(&LockName::new(name).unwrap());
        let command =
            Keys::of(&RedisOptions::default(), &physical, LockKind::Lock).call(&crate::scripts::RENEW);
        let arguments: Vec<_> = command.args_iter().skip(3).collect();
        arguments
            .iter()
            .filter_map(|argument| match argument {
                redis::Arg::Simple(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn the_keys_of_a_lock_share_one_hash_tag() {
        assert_eq!(keys("orders/42")[0], "distlock:{orders/42}:l");
        assert_eq!(keys("orders/42").len(), 5);
    }

    #[test]
    fn a_hash_tag_has_the_slot_that_a_cluster_assigns() {
        for (tag, slot) in [("b", 3300), ("foo", 12182), ("123456789", 0x31c3)] {
            assert_eq!(hash_slot(tag), slot, "{tag}");
        }
    }

    #[test]
    fn a_key_says_which_lock_is_in_use() {
        let owner = |key| owner_of("distlock", key);
        assert_eq!(owner("distlock:{a:b}:l"), Some(("a:b".to_owned(), LockKind::Lock)));
        assert_eq!(owner("distlock:{a}:s:q"), Some(("a".to_owned(), LockKind::Semaphore)));
        for other in
            ["distlock:{a}:f", "distlock:{a}:m:x:l", "distlock2:{a}:l", "other:{a}:l", "distlock:a:l"]
        {
            assert_eq!(owner(other), None, "{other}");
        }
        assert_eq!(pattern("a*b"), r"a\*b:{*}*:[lq]");
    }

    #[test]
    fn a_semaphore_has_keys_of_its_own() {
        let physical = NAMES.apply(&LockName::new("render").unwrap());
        let keys = Keys::of(&RedisOptions::default(), &physical, LockKind::Semaphore);
        assert_eq!(keys.start, "distlock:{render}:s");
    }

    #[test]
    fn an_id_says_its_mode() {
        let number = |number| NonZeroU32::new(number).unwrap();
        let id = |mode, sections| IdAtServer { attempt: AttemptId::new(7), mode, sections }.to_string();
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: number(2), of: number(u32::MAX) }] {
            assert_eq!(mode_of(&id(mode, NonZeroU32::MIN)), mode);
        }
        let series = id(Mode::Exclusive, number(100));
        assert_eq!(series, "00000000000000000000000000000007+99");
        assert_eq!(mode_of(&series), Mode::Exclusive);
        for foreign in ["thief", "a:b", "a:0/3", "a:1/", ":"] {
            assert_eq!(mode_of(foreign), Mode::Exclusive, "{foreign}");
        }
    }

    #[test]
    fn braces_in_a_name_do_not_reach_the_hash_tag() {
        for name in ["{}", "a{b}c", "}", "{"] {
            for key in keys(name) {
                assert_eq!(key.matches(['{', '}']).count(), 2, "{name}: {key}");
            }
        }
    }
}
