//! Checks that the scripts use only what Redis 6.2, the oldest supported server, knows.
use crate::scripts::Scripts;

/// Each command that a script may call, with its permitted options, and the version that has all of them.
const KNOWN: &[(&str, &[&str], &str)] = &[
    ("DEL", &[], "1.0"),
    ("EXISTS", &[], "1.0"),
    ("GET", &[], "1.0"),
    ("HDEL", &[], "2.0"),
    ("HGET", &[], "2.0"),
    ("HMGET", &[], "2.0"),
    ("HSET", &[], "2.0"),
    ("PEXPIRE", &[], "2.6"),
    ("PTTL", &[], "2.6"),
    ("PUBLISH", &[], "2.0"),
    ("PUBSUB", &["NUMSUB"], "2.8"),
    ("SET", &["KEEPTTL", "NX", "PX", "PXAT", "XX"], "6.2"),
    ("TIME", &[], "2.6"),
    ("ZADD", &["NX"], "3.0.2"),
    ("ZCARD", &[], "1.2"),
    ("ZCOUNT", &[], "2.0"),
    ("ZINCRBY", &[], "1.2"),
    ("ZRANGE", &["BYSCORE", "LIMIT", "WITHSCORES"], "6.2"),
    ("ZREM", &[], "1.2"),
    ("ZSCORE", &[], "1.2"),
];

fn is_word(text: &str) -> bool {
    text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// The words in capitals between quotes, and whether a call begins with them.
fn words(line: &str) -> Vec<(&str, bool)> {
    let mut pieces = line.split('\'');
    let mut before = pieces.next().unwrap_or_default();
    let mut found = Vec::new();
    while let (Some(word), Some(after)) = (pieces.next(), pieces.next()) {
        if is_word(word) {
            found.push((word, before.ends_with("call(")));
        }
        before = after;
    }
    found
}

fn complaints(file: &str, line: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut known: &[&str] = &[];
    for (word, begins) in words(line) {
        if begins {
            match KNOWN.iter().find(|(command, ..)| *command == word) {
                Some((_, options, _)) => known = options,
                None => complaints.push(format!("{file}.lua: {word}: {line}")),
            }
        } else if !known.contains(&word) {
            complaints.push(format!("{file}.lua: option {word}: {line}"));
        }
    }
    complaints
}

fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| line.split("--").next().unwrap_or_default())
}

#[test]
fn every_command_is_known_to_it() {
    let scripts = Scripts::as_shipped();
    let found: Vec<String> = scripts
        .files()
        .flat_map(|(file, text)| code(text).flat_map(move |line| complaints(file, line)))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    let calls = scripts
        .files()
        .flat_map(|(_, text)| code(text))
        .flat_map(words)
        .filter(|(_, begins)| *begins)
        .count();
    assert!(calls > 30, "only {calls} calls are found: the scripts are written in another way now");
    for (command, _, since) in KNOWN {
        assert!(*since <= "6.2", "{command} needs {since}");
    }
}

#[test]
fn a_newer_command_is_found() {
    for line in [
        "return call('LMPOP', KEYS[1])",
        "call('PEXPIRE', HOLD, lease, 'GT')",
        "redis.pcall('PUBSUB', 'SHARDNUMSUB', c)",
    ] {
        assert_eq!(complaints("test", line).len(), 1, "{line}");
    }
}

/// The test above would not find a command in a variable, nor one that a server may refuse to scripts.
#[test]
fn every_call_names_its_command() {
    for (file, text) in Scripts::as_shipped().files() {
        for line in code(text) {
            let calls = line.matches("call(").count();
            assert_eq!(calls, line.matches("call('").count(), "{file}.lua: {line}");
        }
    }
}
