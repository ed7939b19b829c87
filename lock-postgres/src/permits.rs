//! Permits of a semaphore, as advisory locks. Each semaphore has keys in a row of its own:
//!
//! * *the gate*, held while permits are taken. Who waits for permits waits at the gate; the session that has it and finds too
//!   few permits keeps it, and looks again now and then. So requests are served in order, and each takes all or nothing;
//! * *a lock for each permit*;
//! * *a lock for each number of permits*, shared by those that hold permits of a semaphore of that size, and one that all of
//!   them share. They say whether a number is that of the present holders.
//!
//! A statement of procedural SQL takes the permits, because it says in which order the server does what.

use lock_core::Operation;

use crate::key::Key;
use crate::options::TokenSource;
use crate::pg_locks::{KEY_OF_ROW, Looked, held_here};
use crate::session_tag::SessionTag;
use crate::statement::{answered, token};

/// The most permits of a semaphore. The keys of each semaphore have room for as many, twice.
pub(crate) const MOST_PERMITS: u32 = 256;

const ANYONE: u32 = 1;
const FIRST_PERMIT: u32 = 256;
/// That of one permit is the next one.
const NUMBERS: u32 = 512;

/// How many permits are asked for, of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permits {
    pub(crate) take: u32,
    pub(crate) of: u32,
}

impl Permits {
    /// How many locks they are at the server.
    pub(crate) fn locks(self) -> u64 {
        u64::from(self.take) + 2
    }
}

/// How a session passes the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// If it is free.
    Try,
    /// When it is free. The session keeps it if there are too few permits.
    Wait,
    /// It has it. The session keeps it if there are too few permits.
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

/// Takes permits. `limit` is the most entries of the table of locks that may be taken, if the server has to count them.
pub(crate) fn take(
    key: Key,
    permits: Permits,
    gate: Gate,
    tokens: TokenSource,
    tag: SessionTag,
    limit: Option<u64>,
) -> String {
    let Permits { take, of } = permits;
    let (is_here, token) = (tag.is_here(), token(tokens));
    let (permit_keys, numbers, number, anyone) =
        (key.plus(FIRST_PERMIT), key.plus(NUMBERS), key.plus(NUMBERS + of), key.plus(ANYONE));
    let count = limit.map(|limit| {
        format!("taken:=(SELECT count(*) FROM pg_locks);IF taken>{limit} THEN answer:='full '||taken;END IF;")
    });
    let count = count.unwrap_or_default();
    let pass = match gate {
        Gate::Try => format!("IF NOT pg_try_advisory_lock({key}) THEN answer:='passing';END IF;"),
        Gate::Wait => format!("PERFORM pg_advisory_lock({key});"),
        Gate::Passed => String::new(),
    };
    let keep = if gate == Gate::Try { "false" } else { "answer='few'" };
    let refused = if gate == Gate::Try { "0" } else { "few" };
    let body = format!(
        "DECLARE got int[]:='{{}}';one int;taken bigint;answer text;BEGIN \
         IF NOT {is_here} OR pg_is_in_recovery() THEN answer:='elsewhere';ELSE \
         {count}\
         IF answer IS NULL THEN {pass}END IF;\
         IF answer IS NULL THEN \
         IF pg_try_advisory_lock({number}) THEN PERFORM pg_advisory_unlock({number});\
         IF pg_try_advisory_lock({anyone}) THEN PERFORM pg_advisory_unlock({anyone});ELSE \
         FOR i IN 1..{MOST_PERMITS} LOOP \
         IF pg_try_advisory_lock({numbers}+i) THEN PERFORM pg_advisory_unlock({numbers}+i);\
         ELSE answer:='of '||i;EXIT;END IF;END LOOP;\
         END IF;END IF;\
         IF answer IS NULL THEN \
         FOR i IN 0..{of}-1 LOOP EXIT WHEN cardinality(got)={take};\
         IF pg_try_advisory_lock({permit_keys}+i) THEN got:=got||i;END IF;END LOOP;\
         IF cardinality(got)={take} THEN \
         PERFORM pg_advisory_lock_shared({number}),pg_advisory_lock_shared({anyone});\
         answer:={token}||' '||array_to_string(got,' ');ELSE \
         FOREACH one IN ARRAY got LOOP PERFORM pg_advisory_unlock({permit_keys}+one);END LOOP;\
         answer:='{refused}';END IF;END IF;\
         IF NOT coalesce({keep},false) THEN PERFORM pg_advisory_unlock({key});END IF;\
         END IF;END IF;\
         PERFORM set_config('distlock.answer',answer,true);END"
    );
    format!("DO $d${body}$d$;SELECT current_setting('distlock.answer')")
}

/// Gives permits back. Those who look at the numbers meanwhile never find one without the other that it belongs to.
pub(crate) fn release(key: Key, of: u32, held: &[u32], tag: SessionTag, operation: Operation) -> String {
    let unlocks =
        held.iter().map(|permit| format!("pg_advisory_unlock({}),", key.plus(FIRST_PERMIT + permit)));
    let unlocks: String = unlocks.collect();
    let (anyone, number) = (key.plus(ANYONE), key.plus(NUMBERS + of));
    let all = format!(
        "NOT false=ANY(ARRAY[pg_advisory_unlock_shared({anyone}),{unlocks}pg_advisory_unlock_shared({number})])"
    );
    answered(tag, operation, &all)
}

/// Gives back whatever a session has of a semaphore.
pub(crate) fn clear(key: Key, tag: SessionTag, operation: Operation) -> String {
    let condition = held_here(Looked::Semaphore(key));
    let all = format!(
        "(SELECT count(CASE mode WHEN 'ShareLock' THEN pg_advisory_unlock_shared(key) ELSE pg_advisory_unlock(key) END)>0 \
         FROM (SELECT mode,{KEY_OF_ROW} AS key FROM pg_locks WHERE {condition} OFFSET 0) AS held)"
    );
    answered(tag, operation, &all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(permits: Permits, gate: Gate) -> String {
        take(Key::of_semaphore("", "render"), permits, gate, TokenSource::Clock, SessionTag::new(7), None)
    }

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
        let permits = Permits { take: 2, of: 3 };
        assert!(!all(permits, Gate::Try).contains("few"));
        for gate in [Gate::Wait, Gate::Passed] {
            assert!(all(permits, gate).contains("answer:='few'"));
        }
        assert!(!all(permits, Gate::Passed).contains("answer:='passing'"));
    }
}
