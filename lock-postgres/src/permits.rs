//! Permits of a semaphore, as advisory locks. Each semaphore has keys in a row of its own:
//!
//! * *the gate*, held while permits are taken. Who waits for permits waits at the gate; the session that has it and finds too
//!   few permits keeps it, and looks again now and then. So requests are served in order, and each takes all or nothing;
//! * *the mark*, held by the session that keeps the gate, so that a try knows it from one that only passes;
//! * *a lock for each permit*;
//! * *a lock for each number of permits*, shared by those that hold permits of a semaphore of that size, and one that all of
//!   them share. They say whether a number is that of the present holders.
//!
//! One statement takes the permits, or none.

use lock_core::Mode;

use crate::key::Key;
use crate::options::TokenSource;
use crate::session_tag::SessionTag;
use crate::statement::{in_session, on_primary, token};

/// The most permits of a semaphore. The keys of each semaphore have room for as many, twice.
pub(crate) const MOST_PERMITS: u32 = 256;

const ANYONE: u32 = 1;
/// Held with the gate while permits are missing.
pub(crate) const MARK: u32 = 2;
const FIRST_PERMIT: u32 = 256;
/// That of one permit is the next one.
const NUMBERS: u32 = 512;

/// How many of the server's locks an acquisition takes.
pub(crate) fn locks(mode: Mode) -> u64 {
    if let Mode::Permits { take, .. } = mode { u64::from(take.get()) + 2 } else { 1 }
}

/// How a session passes the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// If it is free.
    Try,
    /// When it is free. The session keeps it, with the mark, if there are too few permits.
    Wait,
    /// It has it, and the mark. The session keeps both if there are too few permits.
    Passed,
}

/// What a key of a semaphore is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Gate,
    Permit,
    /// Its holders use a semaphore of this size.
    Number(u32),
    Other,
}

impl Part {
    /// The part that is so many keys after the first.
    pub(crate) fn at(offset: u32) -> Self {
        match offset {
            0 => Self::Gate,
            FIRST_PERMIT..NUMBERS => Self::Permit,
            _ if (NUMBERS + 1..=NUMBERS + MOST_PERMITS).contains(&offset) => Self::Number(offset - NUMBERS),
            _ => Self::Other,
        }
    }
}

/// The statement that takes `$2` permits of `$3`, where `$1` is the first key.
///
/// Each step needs what the one before it has found, so the server carries them out in this order. No holder comes while a session
/// has the gate.
pub(crate) fn take(gate: Gate, tokens: TokenSource, tag: SessionTag) -> String {
    let marked = format!("CASE WHEN pg_advisory_lock($1+{MARK}) IS NOT NULL THEN '{AT_HEAD}' END");
    let unmarked = format!("pg_advisory_unlock($1+{MARK}) AND ");
    let (pass, too_few, unmark) = match gate {
        Gate::Try => ("pg_try_advisory_lock($1)", "'0'", ""),
        Gate::Wait => ("pg_advisory_lock($1) IS NOT NULL", marked.as_str(), ""),
        Gate::Passed => ("true", "'few'", unmarked.as_str()),
    };
    let passing = format!(
        "CASE WHEN pg_try_advisory_lock_shared($1+{MARK}) THEN \
         CASE WHEN pg_advisory_unlock_shared($1+{MARK}) THEN 'passing' END ELSE '0' END"
    );
    let (number, token) = (other_number(), token(tokens));
    let steps = format!(
        "(WITH gate AS MATERIALIZED (SELECT {pass} AS passed),\
         numbered AS MATERIALIZED (SELECT passed,CASE WHEN passed THEN {number} END AS other FROM gate),\
         tried AS MATERIALIZED (SELECT passed,other,CASE WHEN other=0 THEN \
         ARRAY(SELECT i FROM generate_series(0,$3-1) AS i WHERE pg_try_advisory_lock($1+{FIRST_PERMIT}+i) LIMIT $2) \
         END AS permits FROM numbered),\
         answered AS MATERIALIZED (SELECT CASE WHEN NOT passed THEN {passing} WHEN other>0 THEN 'of '||other \
         WHEN cardinality(permits)=$2 THEN CASE WHEN pg_advisory_lock_shared($1+{NUMBERS}+$3) IS NOT NULL \
         AND pg_advisory_lock_shared($1+{ANYONE}) IS NOT NULL THEN {token}||' '||array_to_string(permits,' ') END \
         WHEN (SELECT count(pg_advisory_unlock($1+{FIRST_PERMIT}+i)) FROM unnest(permits) AS i)>=0 \
         THEN {too_few} END AS answer,passed FROM tried) \
         SELECT CASE WHEN NOT passed OR answer='{AT_HEAD}' THEN answer \
         WHEN {unmark}pg_advisory_unlock($1) THEN answer END FROM answered)"
    );
    on_primary(tag, &steps)
}

/// The answer to a request that keeps the gate, because too few permits are free.
const AT_HEAD: &str = "few";

/// The expression for another number of permits with which the semaphore is used, or 0.
fn other_number() -> String {
    let is_used = format!(
        "CASE WHEN pg_try_advisory_lock($1+{NUMBERS}+i) THEN NOT pg_advisory_unlock($1+{NUMBERS}+i) ELSE true END"
    );
    format!(
        "CASE WHEN pg_try_advisory_lock($1+{NUMBERS}+$3) THEN CASE WHEN pg_advisory_unlock($1+{NUMBERS}+$3) THEN \
         CASE WHEN pg_try_advisory_lock($1+{ANYONE}) THEN CASE WHEN pg_advisory_unlock($1+{ANYONE}) THEN 0 END \
         ELSE COALESCE((SELECT i FROM generate_series(1,{MOST_PERMITS}) AS i WHERE {is_used} LIMIT 1),0) END \
         END ELSE 0 END"
    )
}

/// The statement whose answer is whether the session had the permits `$3` of a semaphore of `$2` with the first key `$1`, which it has no
/// longer when the server has evaluated it.
pub(crate) fn give_back(_: TokenSource, tag: SessionTag) -> String {
    let condition = format!(
        "NOT false=ANY(ARRAY[pg_advisory_unlock_shared($1+{ANYONE}),\
         (SELECT bool_and(pg_advisory_unlock($1+{FIRST_PERMIT}+i)) FROM unnest($3::integer[]) AS i),\
         pg_advisory_unlock_shared($1+{NUMBERS}+$2)])"
    );
    in_session(tag, &condition)
}

/// What stands in the place of its `$1`, `$2` and `$3`.
pub(crate) fn held(key: Key, of: u32, permits: &[u32]) -> String {
    let permits: Vec<_> = permits.iter().map(u32::to_string).collect();
    format!("{key},{of},'{{{}}}'", permits.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_keys_of_its_own() {
        assert_eq!(Part::at(0), Part::Gate);
        assert_eq!(Part::at(ANYONE), Part::Other);
        assert_eq!(
            (Part::at(FIRST_PERMIT), Part::at(FIRST_PERMIT + MOST_PERMITS - 1)),
            (Part::Permit, Part::Permit)
        );
        assert_eq!(Part::at(NUMBERS), Part::Other);
        for of in [1, MOST_PERMITS] {
            assert_eq!(Part::at(NUMBERS + of), Part::Number(of));
        }
        assert!(u64::from(NUMBERS + MOST_PERMITS) < crate::key::SEMAPHORE_KEYS);
    }

    #[test]
    fn only_who_waits_keeps_the_gate() {
        for (gate, keeps) in [(Gate::Try, false), (Gate::Wait, true), (Gate::Passed, true)] {
            let taking = take(gate, TokenSource::Clock, SessionTag::new(7));
            assert_eq!(taking.contains("THEN 'few' END"), keeps, "{gate:?}");
        }
    }
}
