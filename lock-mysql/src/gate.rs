//! The statements by which an attempt gets a lock, a reader's slot or permits, and the server's answers.
//!
//! Each attempt goes through the *gate*, at which the server queues all of them in order.
//! * An exclusive holder keeps the gate. It has seen each reader's slot free since it has the gate.
//! * A reader takes a slot while it has the gate, and then lets the gate go. Permits are taken in the same way.
//! * While no session has the gate, a reader passes by: it takes a slot, and keeps it if the gate is still free then. Otherwise it gives
//!   the slot back before it queues at the gate.
//!
//! A writer looks at each slot after it has taken the gate, and a reader that passes by looks at the gate after it has taken its slot. So one
//! of the two sees the other, whichever comes first. A writer may see a slot for the moment in which its reader gives it back, so a slot
//! that a writer has seen free is not held later, as long as the writer has the gate.
//!
//! The statements count in a variable of the session, in loops of `BENCHMARK`. With a function for each slot instead, the server
//! would need about as long to parse them as for everything else in an uncontended cycle. A loop that is interrupted ends before its
//! last count.
//!
//! Reading the text of such a statement takes the server longer than what it asks for. So a session of `MariaDB` that needs a lock for a
//! second time prepares the writer's statement, with no time to wait, and begins with it. If the lock is not free, it has let the gate go, and
//! the whole text follows: what waits at the server is always a text, as the server shows no names of a prepared one to those who ask who
//! waits. So the place of a waiter begins one round trip later. Where locks are not free, a session rarely begins so.
//!
//! A function whose statement is interrupted answers NULL on some servers, and the statement goes on. So a NULL never counts as 1:
//! what follows is evaluated only after a 1, and an answer that lacks something is not an answer.

use std::fmt::Write as _;
use std::num::NonZeroU32;

use lock_core::{LockKind, Mode, Operation};
use lock_sql::comment;

use crate::dialect::Claim;
use crate::options::TokenSource;
use crate::parts::{MOST_SLOTS, Name, Parts, READER_SLOTS, count};
use crate::statement::{LONGEST_WAIT, READ_ONLY, TABLE, TAG, is_read_only};

/// What all attempts on a connection have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) tokens: TokenSource,
    /// The slot that a reader tries first. It is best if each connection has its own.
    pub(crate) first_slot: usize,
    /// How long one statement waits for a reader's slot to become free, in seconds.
    pub(crate) slice: u64,
    /// After how many more attempts the session begins one with what is prepared; none if it never does.
    pub(crate) prepared_after: Option<u8>,
    pub(crate) is_prepared: bool,
}

/// How many attempts of a session begin with the whole text after a lock was not free.
pub(crate) const WHOLE_WHEN_BUSY: Option<u8> = Some(15);

impl Manner {
    /// That of the connection with this number.
    pub(crate) fn starting_with(self, connection: u64) -> Self {
        let first = usize::try_from(connection).unwrap_or_default();
        Self { first_slot: first % READER_SLOTS, ..self }
    }

    /// Whether this attempt begins with what is prepared.
    pub(crate) fn begins_prepared(&mut self, claim: &Claim) -> bool {
        let is_usual = claim.mode == Mode::Exclusive && claim.sections.get() == 1;
        let begins = is_usual && self.tokens != TokenSource::Table && self.prepared_after == Some(0);
        self.prepared_after = self.prepared_after.map(|more| more.saturating_sub(1));
        begins
    }

    /// Makes the next reader try that slot first. A writer looks at no others than these.
    pub(crate) fn has_had(&mut self, slot: usize) {
        if slot < READER_SLOTS {
            self.first_slot = slot;
        }
    }
}

/// The number for a token, or for none.
fn mint(tokens: TokenSource) -> &'static str {
    if tokens == TokenSource::Clock { "UUID_SHORT()" } else { "1" }
}

/// What an attempt does if the gate is its own and something behind it is not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Otherwise {
    KeepTheGate,
    /// Keep the gate as well, and wait for the first slot that is not free, as a writer does.
    AwaitTheSlot,
    LetItGo,
}

const BUSY: &str = "0";
const SHORT: &str = "-1";
const SHORT_AND_GONE: &str = "-2";

/// The variable of the session in which statements count.
const COUNT: &str = "@distlock_count";

/// The names of what a session prepares.
const TAKE: &str = "distlock_take";
pub(crate) const RELEASE: &str = "distlock_release";

/// The variable in which a statement gathers what it has seen.
const USED: &str = "@distlock_used";

/// Takes what can be taken at once. The answer also says which connection has the gate now, and in a second column what the table
/// says of its last holder.
pub(crate) fn take(claim: &Claim, manner: Manner) -> String {
    let gate = &claim.key.gate;
    let word = through_the_gate(claim, 0, manner, Otherwise::LetItGo);
    let tagged = format!("CONCAT({TAG},'@',IFNULL(IS_USED_LOCK('{gate}'),0))");
    let mut text = answer(&comment(Operation::Acquire), &word, &tagged);
    if manner.tokens == TokenSource::Table {
        let columns = "token,attempt,connection,run,since,holder";
        // Writing to a string cannot fail.
        let _ = write!(text, ",(SELECT CONCAT_WS(' ',{columns}) FROM {TABLE} WHERE name='{gate}')b");
    }
    text
}

/// Waits for the gate, and takes what can be taken then.
pub(crate) fn wait(claim: &Claim, manner: Manner, comment: &str) -> String {
    answer(comment, &through_the_gate(claim, LONGEST_WAIT, manner, Otherwise::KeepTheGate), TAG)
}

/// Takes what can be taken at once, by a statement that the message prepares if the session has not done so.
pub(crate) fn begin(claim: &Claim, manner: Manner) -> String {
    let mut message = String::new();
    if !manner.is_prepared {
        let any = Claim { key: Parts::new("?".into(), LockKind::Lock), ..claim.clone() };
        let word = through_the_gate(&any, 0, manner, Otherwise::LetItGo);
        let text = answer(&comment(Operation::Acquire), &word, TAG);
        let text = text.replace("'?'", "?").replace("'?|'", "?").replace('\'', "''");
        let take = format!("PREPARE {} {TAKE} FROM '{text}'", comment(Operation::Acquire));
        message = format!("{take};PREPARE {RELEASE} FROM 'SELECT RELEASE_LOCK(?)';");
    }
    message + &execute(TAKE, Operation::Acquire, &[&claim.key.gate, &claim.key.stem(), &claim.key.gate])
}

/// Carries out what the session has prepared, for these names.
pub(crate) fn execute(prepared: &str, operation: Operation, names: &[&str]) -> String {
    format!("EXECUTE {} {prepared} USING '{}'", comment(operation), names.join("','"))
}

/// Goes on behind the gate, which is this session's. An exclusive attempt waits for the first slot that is not free, and for no other:
/// during a statement the server does not count the silence of a client that has vanished.
pub(crate) fn go_on(claim: &Claim, manner: Manner, comment: &str) -> String {
    let is_writer = claim.mode == Mode::Exclusive;
    let otherwise = if is_writer { Otherwise::AwaitTheSlot } else { Otherwise::KeepTheGate };
    answer(comment, &behind_the_gate(claim, manner, otherwise), TAG)
}

/// Makes an exclusive hold a reader's: takes a slot, and then lets the gate go.
pub(crate) fn share(claim: &Claim, manner: Manner) -> String {
    let word = behind_the_gate(claim, manner, Otherwise::KeepTheGate);
    answer(&comment(Operation::Downgrade), &word, TAG)
}

/// Takes these slots with their sizes, and then lets the gate go.
pub(crate) fn take_permits(claim: &Claim, slots: &[usize], manner: Manner) -> String {
    // The sizes first: a slot that is seen held has its size.
    let held = claim.key.held_with(slots, claim.mode).into_iter().rev();
    let all = joined(held.map(|name| format!("GET_LOCK('{name}',0)=1")), " AND ");
    let (mint, gate) = (mint(manner.tokens), &claim.key.gate);
    let numbers = joined(slots.iter().map(usize::to_string), ",");
    let word = format!("IF({all},CONCAT('{numbers}',':',{mint},':',IFNULL(RELEASE_LOCK('{gate}'),-1)),NULL)");
    answer(&comment(Operation::Acquire), &word, TAG)
}

/// `ELT` evaluates its first argument, and then the one that this selects. `IFNULL` evaluates its second one only after a NULL.
fn through_the_gate(claim: &Claim, seconds: u32, manner: Manner, otherwise: Otherwise) -> String {
    let (gate, behind) = (&claim.key.gate, behind_the_gate(claim, manner, otherwise));
    let through = format!("ELT(1+IFNULL(GET_LOCK('{gate}',{seconds}),2),'{BUSY}',{behind},NULL)");
    match claim.mode {
        Mode::Shared => format!("IFNULL({},{through})", past_the_gate(claim, manner)),
        _ => through,
    }
}

/// Takes a reader's slot while the gate is free, or gives NULL. What is no answer says that the slot may be left.
fn past_the_gate(claim: &Claim, manner: Manner) -> String {
    let (mint, index) = (mint_all(claim, manner), manner.first_slot);
    let (slot, is_free) = (claim.key.slot(index), format!("IS_FREE_LOCK('{}')=1", claim.key.gate));
    format!(
        "IF({is_free} AND GET_LOCK('{slot}',0)=1,IF({is_free},CONCAT('{index}:',{mint},':1'),IF(RELEASE_LOCK('{slot}')=1,NULL,'')),NULL)"
    )
}

fn behind_the_gate(claim: &Claim, manner: Manner, otherwise: Otherwise) -> String {
    let (mint, gate) = (mint_all(claim, manner), &claim.key.gate);
    let short = match otherwise {
        Otherwise::KeepTheGate => format!("'{SHORT}'"),
        Otherwise::AwaitTheSlot => {
            let (slot, slice) = (format!("CONCAT('{}',{COUNT})", claim.key.stem()), manner.slice);
            format!("IF(GET_LOCK({slot},{slice})=0,'{SHORT}',IF(RELEASE_LOCK({slot})=1,'{SHORT}',NULL))")
        }
        Otherwise::LetItGo => format!("IF(RELEASE_LOCK('{gate}')=1,'{SHORT_AND_GONE}','{SHORT}')"),
    };
    match claim.mode {
        Mode::Permits { of, .. } => used(claim, count(of)),
        Mode::Shared => {
            let slot = take_a_slot(claim, manner);
            // `CONCAT` evaluates nothing behind a NULL, which is what there is without a slot.
            format!("IFNULL(CONCAT({slot},':',{mint},':',IFNULL(RELEASE_LOCK('{gate}'),-1)),{short})")
        }
        _ => {
            format!("IF({},{mint},{short})", are_slots_free(claim))
        }
    }
}

/// Counts the free slots; the count stays at the first that is not free. It is not left at its end, so that no statement can take the
/// count of an earlier one for its own, in whatever order a server evaluates.
fn are_slots_free(claim: &Claim) -> String {
    let (stem, slots) = (claim.key.stem(), READER_SLOTS);
    format!(
        "({COUNT}:=0)=0 AND BENCHMARK({slots},{COUNT}:={COUNT}+IS_FREE_LOCK(CONCAT('{stem}',{COUNT})))=0 \
         AND {COUNT}={slots} AND ({COUNT}:=-1)<0"
    )
}

/// Takes the first slot that is free, and gives its number, or NULL. A count below zero says which one it is.
fn take_a_slot(claim: &Claim, manner: Manner) -> String {
    let (stem, slots, first) = (claim.key.stem(), READER_SLOTS, manner.first_slot);
    format!(
        "IF(({COUNT}:={first})={first} AND BENCHMARK({slots},IF({COUNT}<0,0,\
         IF(GET_LOCK(CONCAT('{stem}',{COUNT} MOD {slots}),0)=1,{COUNT}:=-1-{COUNT} MOD {slots},{COUNT}:={COUNT}+1)))=0 \
         AND {COUNT}<0,-1-{COUNT},NULL)"
    )
}

/// The token, and the last one that the statement reserves after it. The server counts for all locks at once: what another one
/// gets in between is no token of this lock.
fn mint_all(claim: &Claim, manner: Manner) -> String {
    let mint = mint(manner.tokens);
    match claim.sections.get() - 1 {
        more @ 1.. if manner.tokens == TokenSource::Clock => {
            format!("CONCAT({mint},'-',IF(BENCHMARK({more},{mint})=0,{mint},0),'-{more}')")
        }
        _ => mint.to_owned(),
    }
}

/// Which connections have the slots, and the sizes of those below `of`, each with a comma behind it. A size is read before its slot,
/// because a client that has a slot had its size before.
fn used(claim: &Claim, of: usize) -> String {
    let (stem, last) = (claim.key.stem(), MOST_SLOTS - 1);
    let size = format!("CONCAT(IFNULL(IS_USED_LOCK(CONCAT('{stem}',{COUNT},'/{of}')),0),',')");
    let slot = format!("IFNULL(IS_USED_LOCK(CONCAT('{stem}',{COUNT})),0)");
    let next = format!("IF(({COUNT}:={COUNT}+1)<{of},{size},'')");
    format!(
        "IF(({COUNT}:=-1)<0 AND ({USED}:='')='' AND BENCHMARK({MOST_SLOTS},{USED}:=CONCAT({USED},{next},{slot},','))=0 \
         AND {COUNT}={last},{USED},NULL)"
    )
}

/// All locks that this attempt may have after any of its statements.
pub(crate) fn all_parts(claim: &Claim) -> Vec<Name> {
    let slots = match claim.mode {
        Mode::Permits { of, .. } => count(of).min(MOST_SLOTS),
        _ => READER_SLOTS,
    };
    let slots: Vec<_> = (0..slots).collect();
    let mut parts = claim.key.held_with(&slots, claim.mode);
    parts.push(claim.key.gate.clone());
    parts
}

/// The answer is one text, because each column costs both sides more than its content. Its words are those of [`Answered`].
fn answer(comment: &str, word: &str, tag: &str) -> String {
    format!("SELECT {comment} CONCAT_WS(' ',{word},{READ_ONLY},{tag})a")
}

fn joined(parts: impl Iterator<Item = String>, with: &str) -> String {
    parts.collect::<Vec<_>>().join(with)
}

/// What the answer to an attempt's statement says of the attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Another connection has the gate.
    Busy,
    /// The gate was this session's, and what is behind it is not free.
    Short { gate: Gate },
    /// The lock is held exclusively. The number is the token, or 1 if none is minted with the lock.
    All(u64),
    /// These slots are held.
    Slots { slots: Vec<usize>, token: u64, gate: Gate },
    /// Which connections have the slots of a semaphore, and their sizes.
    Used(Vec<u64>),
}

/// Whether a session still has the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    Kept,
    Gone,
}

impl Word {
    fn read(text: &str) -> Option<Self> {
        Some(match text {
            BUSY => Self::Busy,
            SHORT => Self::Short { gate: Gate::Kept },
            SHORT_AND_GONE => Self::Short { gate: Gate::Gone },
            _ if text.contains(':') => {
                let mut parts = text.split(':');
                let (slots, token, released) = (parts.next()?, parts.next()?, parts.next()?);
                let gate = if released == "1" { Gate::Gone } else { Gate::Kept };
                let slots = slots.split(',').map(|slot| slot.parse().ok()).collect::<Option<_>>()?;
                Self::Slots { slots, token: token.parse().ok()?, gate }
            }
            _ if text.ends_with(',') => {
                let used = text.split_terminator(',').map(|number| number.parse().ok());
                Self::Used(used.collect::<Option<_>>()?)
            }
            _ if text.contains('-') => {
                let mut numbers = text.split('-').map(|number| number.parse().ok());
                let (token, last, more): (u64, u64, u64) =
                    (numbers.next()??, numbers.next()??, numbers.next()??);
                // Fewer are reserved if the statement was interrupted.
                last.checked_sub(token).filter(|reserved| *reserved >= more)?;
                Self::All(token)
            }
            _ => Self::All(text.parse().ok()?),
        })
    }
}

/// The server's answer to an attempt's statement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    /// None if the statement was interrupted.
    pub(crate) word: Option<Word>,
    pub(crate) is_read_only: bool,
    /// The tag of the session that answered.
    pub(crate) tag: u64,
    /// The connection that has the gate now, if the statement asks for it and one has.
    pub(crate) holder: Option<u64>,
}

impl Answered {
    pub(crate) fn read(text: &str) -> Option<Self> {
        let words: Vec<_> = text.split(' ').collect();
        let (word, read_only, tag) = match words.as_slice() {
            [word, read_only, tag] => (Some(Word::read(word)?), read_only, tag),
            // The server leaves NULL out.
            [read_only, tag] => (None, read_only, tag),
            _ => return None,
        };
        let (tag, holder) = tag.split_once('@').unwrap_or((tag, "0"));
        let (tag, holder) = (tag.parse().ok()?, holder.parse().ok()?);
        let holder = Some(holder).filter(|holder| *holder != 0);
        Some(Self { word, is_read_only: is_read_only(read_only), tag, holder })
    }
}

/// What an attempt finds behind the gate of a semaphore.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// These slots are free.
    Free(Vec<usize>),
    TooFew,
    /// The holder of this slot uses the semaphore with another size.
    OtherSize(usize),
    Nonsense,
}

/// Chooses slots for so many permits, from the answer to what is used.
pub(crate) fn choose(used: &[u64], take: NonZeroU32, of: NonZeroU32) -> Found {
    let (take, of) = (count(take), count(of));
    if used.len() != MOST_SLOTS + of {
        return Found::Nonsense;
    }
    let (ours, beyond) = used.split_at(2 * of);
    let mut free = Vec::new();
    for (index, pair) in ours.chunks(2).enumerate() {
        match pair {
            [_, 0] => free.push(index),
            [size, slot] if size == slot => {}
            _ => return Found::OtherSize(index),
        }
    }
    if let Some(index) = beyond.iter().position(|slot| *slot != 0) {
        return Found::OtherSize(of + index);
    }
    if free.len() < take {
        return Found::TooFew;
    }
    free.truncate(take);
    Found::Free(free)
}

/// With which sizes the holder of this slot uses the semaphore: the connections that have its sizes, from 1 on.
pub(crate) fn sizes(parts: &Parts, slot: usize, operation: Operation) -> String {
    let sizes: Vec<_> = (1..=MOST_SLOTS).map(|of| parts.size(slot, of)).collect();
    crate::statement::holders(sizes.iter().map(|name| &**name), operation)
}

/// Reads the answer to [`sizes`].
pub(crate) fn size_of(text: &str) -> Option<u32> {
    let place = text.split(' ').position(|connection| connection != "0")?;
    u32::try_from(place + 1).ok()
}

#[cfg(test)]
mod tests {
    use lock_core::{AttemptId, LockKind, LockName};

    use super::*;
    use lock_sql::operation_of;

    const MANNER: Manner = Manner {
        tokens: TokenSource::Clock,
        first_slot: 1,
        slice: 30,
        prepared_after: Some(1),
        is_prepared: false,
    };

    fn permits(take: u32, of: u32) -> Mode {
        Mode::Permits { take: NonZeroU32::new(take).unwrap(), of: NonZeroU32::new(of).unwrap() }
    }

    fn claim(mode: Mode) -> Claim {
        Claim {
            key: Parts::new("a".into(), mode.kind()),
            name: LockName::new("a").unwrap(),
            id: AttemptId::new(1),
            mode,
            holder: None,
            sections: NonZeroU32::MIN,
        }
    }

    fn waiter() -> String {
        comment(Operation::Acquire)
    }

    #[test]
    fn a_statement_says_what_it_is_for() {
        let claim = claim(Mode::Exclusive);
        for statement in [take(&claim, MANNER), wait(&claim, MANNER, &waiter())] {
            assert_eq!(operation_of(&statement), Some(Operation::Acquire), "{statement}");
        }
        assert_eq!(operation_of(&share(&claim, MANNER)), Some(Operation::Downgrade));
    }

    #[test]
    fn a_writer_looks_at_each_slot_behind_the_gate() {
        let take = take(&claim(Mode::Exclusive), MANNER);
        let [gate, slots, mint] = ["GET_LOCK('a',0)", "IS_FREE_LOCK(CONCAT('a|',", "UUID_SHORT()"]
            .map(|text| take.find(text).unwrap());
        assert!(gate < slots && slots < mint, "{take}");
    }

    /// The server puts what follows `USING` into the places of the text, in order.
    #[test]
    fn what_is_prepared_is_a_try() {
        let claim = claim(Mode::Exclusive);
        let first = begin(&claim, MANNER);
        let text = first.strip_prefix("PREPARE /*distlock acquire*/ distlock_take FROM '").unwrap();
        let (text, rest) = text.split_once("';PREPARE ").unwrap();
        let execute = begin(&claim, Manner { is_prepared: true, ..MANNER });
        assert!(rest.ends_with(&format!(";{execute}")), "{first}");
        let (_, names) = execute.split_once(" USING ").unwrap();
        let text = text.replace("''", "'");
        let filled = names.split(',').fold(text, |text, name| text.replacen('?', name, 1));
        let who = format!("CONCAT({TAG},'@',IFNULL(IS_USED_LOCK('a'),0))");
        assert_eq!(filled, take(&claim, MANNER).replace(&who, TAG));
        assert_eq!(operation_of(&first), Some(Operation::Acquire));
        assert_eq!(operation_of(&execute), Some(Operation::Acquire));
    }

    #[test]
    fn a_session_begins_with_what_is_prepared_while_locks_are_free() {
        let (writer, reader) = (claim(Mode::Exclusive), claim(Mode::Shared));
        let mut manner = MANNER;
        assert_eq!([(); 3].map(|()| manner.begins_prepared(&writer)), [false, true, true]);
        assert!(!manner.begins_prepared(&reader));
        manner.prepared_after = WHOLE_WHEN_BUSY;
        let begins = [(); 17].map(|()| manner.begins_prepared(&writer));
        assert_eq!(begins.iter().position(|begins| *begins), Some(15));
        manner.prepared_after = None;
        assert!(!manner.begins_prepared(&writer));
    }

    #[test]
    fn a_reader_that_passes_by_looks_at_the_gate_after_it_has_its_slot() {
        let wait = wait(&claim(Mode::Shared), MANNER, &waiter());
        let parts = [
            "IF(GET_LOCK('a|1',0)=1",
            "IF(IS_FREE_LOCK('a')=1,CONCAT('1:',UUID_SHORT(),':1')",
            "RELEASE_LOCK('a|1')",
            "GET_LOCK('a',86400)",
        ];
        let wait = wait.replace("IF(IS_FREE_LOCK('a')=1 AND ", "IF(");
        let places: Vec<_> = parts.iter().map(|part| wait.find(part).unwrap()).collect();
        assert!(places.is_sorted(), "{wait}");
    }

    #[test]
    fn what_is_granted_is_distinguished_from_what_is_not() {
        let answer = |word, is_read_only, holder| Some(Answered { word, is_read_only, tag: 7, holder });
        let answered = |word, is_read_only| answer(word, is_read_only, None);
        let slots = |slots: &[usize], gate| Word::Slots { slots: slots.to_vec(), token: 9, gate };
        for (text, read) in [
            ("18446744073709551615 0 7", answered(Some(Word::All(u64::MAX)), false)),
            ("0 OFF 7", answered(Some(Word::Busy), false)),
            ("5 ON 7", answered(Some(Word::All(5)), true)),
            ("0 7", answered(None, false)),
            ("-1 0 7", answered(Some(Word::Short { gate: Gate::Kept }), false)),
            ("-2 0 7", answered(Some(Word::Short { gate: Gate::Gone }), false)),
            ("7-107-99 0 7", answered(Some(Word::All(7)), false)),
            ("7-105-99 0 7", None),
            ("7-0-99 0 7", None),
            ("7-107 0 7", None),
            ("3:9:1 0 7", answered(Some(slots(&[3], Gate::Gone)), false)),
            ("3,4:9:-1 0 7", answered(Some(slots(&[3, 4], Gate::Kept)), false)),
            ("0,12, 0 7", answered(Some(Word::Used(vec![0, 12])), false)),
            ("0,12 0 7", None),
            ("0 0 7@0", answered(Some(Word::Busy), false)),
            ("0 0 7@12", answer(Some(Word::Busy), false, Some(12))),
            ("0 0 7@", None),
            ("", None),
            ("7", None),
            ("x 0 7", None),
            ("-3 0 7", None),
            ("3:9 0 7", None),
            ("3:x:1 0 7", None),
            ("1 0 x", None),
            ("1 0 7 7", None),
        ] {
            assert_eq!(Answered::read(text), read, "{text}");
        }
    }

    #[test]
    fn permits_are_chosen_of_those_that_are_free_and_of_one_size() {
        let [two, three] = [2, 3].map(|number| NonZeroU32::new(number).unwrap());
        let used = |ours: [u64; 6], beyond: Option<usize>| {
            let mut used = [&ours[..], &[0; MOST_SLOTS - 3]].concat();
            if let Some(beyond) = beyond {
                used[3 + beyond] = 9;
            }
            used
        };
        let found = |ours, beyond| choose(&used(ours, beyond), two, three);
        assert_eq!(found([0, 0, 0, 0, 0, 0], None), Found::Free(vec![0, 1]));
        assert_eq!(found([0, 0, 7, 7, 0, 0], None), Found::Free(vec![0, 2]));
        assert_eq!(found([7, 7, 7, 7, 0, 0], None), Found::TooFew);
        assert_eq!(found([7, 0, 0, 0, 0, 0], None), Found::Free(vec![0, 1]));
        assert_eq!(found([0, 0, 0, 7, 0, 0], None), Found::OtherSize(1));
        assert_eq!(found([0, 0, 0, 0, 0, 0], Some(5)), Found::OtherSize(5));
        assert_eq!(choose(&[0, 0], two, three), Found::Nonsense);
        assert_eq!((size_of("0 0 12 0"), size_of("0 0")), (Some(3), None));
    }

    #[test]
    fn the_size_is_taken_before_the_slot_and_looked_at_before_it() {
        let claim = claim(permits(1, 2));
        let taking = take_permits(&claim, &[1], MANNER);
        assert!(taking.find("GET_LOCK('a|p1/2',0)").unwrap() < taking.find("GET_LOCK('a|p1',0)").unwrap());
        let look = take(&claim, MANNER);
        let [size, slot] = ["CONCAT('a|p',@distlock_count,'/2')", "CONCAT('a|p',@distlock_count))"];
        assert!(look.find(size).unwrap() < look.find(slot).unwrap());
        assert_eq!(claim.key.kind, LockKind::Semaphore);
    }
}
