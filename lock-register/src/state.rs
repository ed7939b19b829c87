//! What an object says: who holds the lock, who waits, and the last token.

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::spi::random_bytes;
use lock_core::{
    AcquireRequest, AttemptId, ErrorKind, FencingToken, HolderId, HolderInfo, LockError, LockName,
    LossReason, Mode, Operation, Participant,
};
use lock_kit::{Asked, ClientRecord, Shares};
use serde::{Deserialize, Serialize};

/// How many broken holds an object remembers, so that their clients learn why they lost them.
const MOST_BROKEN: usize = 16;

/// An object, as it is stored.
#[derive(Serialize, Deserialize)]
struct Content {
    /// The layout.
    v: u32,
    /// The mark of the write. No two have the same, so that no two contents are the same.
    write: String,
    /// What it was written for. People read it, and tests.
    by: String,
    /// The last fencing token.
    token: u64,
    holders: Vec<Entry>,
    queue: Vec<Entry>,
    /// The ids of holds that were broken of late.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    broken: Vec<String>,
}

const LAYOUT: u32 = 1;

/// A holder or a waiter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    id: String,
    mode: EntryMode,
    /// It changes with each sign of life, and no two writes of an entry have the same.
    beat: u64,
    /// In milliseconds.
    lease: u64,
    /// How many tokens its grant reserves.
    sections: NonZeroU32,
    /// The first of these; zero for a waiter.
    token: u64,
    /// In milliseconds since the epoch by the clock of its machine, which only people read.
    since: u64,
    /// The lock's name as its user writes it, if the key has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(flatten)]
    client: ClientRecord,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EntryMode {
    Exclusive,
    Shared,
    Permits { take: NonZeroU32, of: NonZeroU32 },
}

impl EntryMode {
    fn mode(self) -> Mode {
        match self {
            Self::Exclusive => Mode::Exclusive,
            Self::Shared => Mode::Shared,
            Self::Permits { take, of } => Mode::Permits { take, of },
        }
    }
}

impl From<Mode> for EntryMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Shared => Self::Shared,
            Mode::Permits { take, of } => Self::Permits { take, of },
            _ => Self::Exclusive,
        }
    }
}

impl Entry {
    pub(crate) fn of(request: &AcquireRequest, lease: Duration, beat: u64) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            id: request.id().to_string(),
            mode: request.mode().into(),
            beat,
            lease: milliseconds(lease),
            sections: request.sections(),
            token: 0,
            since: milliseconds(since),
            name: (request.physical().as_str() != request.name().as_str())
                .then(|| request.name().to_string()),
            client: ClientRecord::from(&**request.holder()),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn beat(&self) -> u64 {
        self.beat
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease)
    }

    /// It holds the lock from now on, with the tokens after the last one.
    fn granted(mut self, last: &mut u64) -> Self {
        self.token = last.saturating_add(1);
        *last = last.saturating_add(self.sections.get().into());
        self
    }

    fn participant(&self) -> Participant {
        let mut participant = Participant::new(HolderId::new(&self.id)).with_mode(self.mode.mode());
        participant.token = (self.token > 0).then(|| FencingToken::new(self.token));
        participant.since = UNIX_EPOCH.checked_add(Duration::from_millis(self.since));
        self.client.clone().describe(&mut participant);
        participant
    }
}

/// What an attempt finds.
#[derive(Debug)]
pub(crate) enum Found {
    Holds {
        token: FencingToken,
    },
    /// It is behind so many waiters, and this holder.
    Waits {
        before: usize,
        behind: Option<Participant>,
    },
    /// It has nothing, and this holder is in its way, if one is.
    Nothing {
        behind: Option<Participant>,
    },
    /// The semaphore has this many permits.
    OtherPermits(u32),
}

/// What tells one content of an object from all others: the mark of the write that made it; `None` if there is no object.
pub(crate) type Mark = Option<String>;

/// The state of a lock or of a semaphore.
#[derive(Clone, Default)]
pub(crate) struct State {
    mark: Mark,
    token: u64,
    shares: Shares<Entry, Entry>,
    broken: Vec<String>,
}

impl State {
    pub(crate) fn read(content: &[u8]) -> Result<Self, LockError> {
        let content: Content = serde_json::from_slice(content).map_err(nonsense)?;
        if content.v != LAYOUT {
            return Err(nonsense(format!(
                "it has the layout {}, and this version reads {LAYOUT}",
                content.v
            )));
        }
        let mut shares = Shares::default();
        for entry in content.holders {
            shares.hold(parse(&entry.id)?, entry.mode.mode(), entry);
        }
        for entry in content.queue {
            shares.wait(parse(&entry.id)?, entry.mode.mode(), entry);
        }
        Ok(Self { mark: Some(content.write), token: content.token, shares, broken: content.broken })
    }

    pub(crate) fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Returns what to write, with a mark that no other write has.
    pub(crate) fn content(&mut self, by: Operation) -> Result<Vec<u8>, LockError> {
        let write = format!("{:032x}", u128::from_ne_bytes(random_bytes(by)?));
        self.mark = Some(write.clone());
        let content = Content {
            v: LAYOUT,
            write,
            by: by.to_string(),
            token: self.token,
            holders: self.holders().cloned().collect(),
            queue: self.waiters().cloned().collect(),
            broken: self.broken.clone(),
        };
        serde_json::to_vec(&content).map_err(nonsense)
    }

    pub(crate) fn holders(&self) -> impl Iterator<Item = &Entry> {
        self.shares.holders().map(|(_, _, entry)| entry)
    }

    pub(crate) fn waiters(&self) -> impl Iterator<Item = &Entry> {
        self.shares.waiters().map(|(_, _, entry)| entry)
    }

    /// Those that show signs of life.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.waiters().chain(self.holders())
    }

    /// Removes the entries whose lease is over, and grants what others can have then. Returns whether that changed anything.
    pub(crate) fn settle(&mut self, is_over: impl Fn(&Entry) -> bool) -> bool {
        let over: Vec<_> =
            self.entries().filter(|entry| is_over(entry)).map(|entry| entry.id.clone()).collect();
        let token = self.token;
        for id in &over {
            self.remove(id);
        }
        let last = &mut self.token;
        self.shares.admit(|_, _, entry| entry.granted(last));
        !over.is_empty() || self.token != token
    }

    /// Removes what there is of an attempt, and grants what others can have then. Returns whether it held the lock, if there was
    /// anything.
    pub(crate) fn remove(&mut self, id: &str) -> Option<bool> {
        let last = &mut self.token;
        let removed = self.shares.remove(parse(id).ok()?, |_, _, entry| entry.granted(last));
        removed.held.map(|_| true).or(removed.waited.map(|_| false))
    }

    /// Takes the lock or a place in the queue; only the lock if the attempt tries once. Finds what the attempt has already, and
    /// gives that the beat of the entry.
    pub(crate) fn enter(&mut self, id: AttemptId, entry: Entry, tries_once: bool) -> Found {
        let mode = entry.mode.mode();
        match self.shares.ask(id, mode) {
            Asked::Free => {
                let entry = entry.granted(&mut self.token);
                self.shares.hold(id, mode, entry);
            }
            Asked::Behind if !tries_once => self.shares.wait(id, mode, entry),
            Asked::Holds | Asked::Waits => self.beat(id, entry.beat),
            Asked::Behind => {}
            Asked::OtherPermits(is) => return Found::OtherPermits(is),
        }
        self.find(id)
    }

    /// Gives a sign of life of what the attempt has.
    pub(crate) fn beat(&mut self, id: AttemptId, beat: u64) {
        if let Some(entry) = self.shares.holder_mut(id) {
            entry.beat = beat;
        } else if let Some(entry) = self.shares.waiter_mut(id) {
            entry.beat = beat;
        }
    }

    pub(crate) fn find(&self, id: AttemptId) -> Found {
        if let Some(entry) = self.shares.holder(id) {
            return Found::Holds { token: FencingToken::new(entry.token) };
        }
        let behind = self.holders().next().map(Entry::participant);
        let place = self.shares.waiters().enumerate().find(|(_, (other, _, _))| *other == id);
        match place {
            Some((before, _)) => Found::Waits { before, behind },
            None => Found::Nothing { behind },
        }
    }

    /// Turns an exclusive hold into the shared one of `entry`, which a repeated request finds.
    pub(crate) fn downgrade(&mut self, held: AttemptId, id: AttemptId, entry: Entry) -> Found {
        self.beat(id, entry.beat);
        let last = &mut self.token;
        let granted = entry.granted(last);
        self.shares.share(held, id, |_| granted, |_, _, entry| entry.granted(last));
        self.find(id)
    }

    pub(crate) fn holds(&self, id: AttemptId) -> bool {
        self.shares.holder(id).is_some()
    }

    pub(crate) fn describe(&mut self, id: AttemptId, info: &HolderInfo) -> bool {
        let holder = self.shares.holder_mut(id);
        holder.map(|entry| entry.client = info.into()).is_some()
    }

    /// Takes the lock from this holder. Returns whether it held it.
    pub(crate) fn break_holder(&mut self, id: &str) -> bool {
        let holds = self.holders().any(|entry| entry.id == id);
        if holds {
            self.remove(id);
            self.broken.push(id.to_owned());
            let surplus = self.broken.len().saturating_sub(MOST_BROKEN);
            self.broken.drain(..surplus);
        }
        holds
    }

    /// Whether an operator took the lock from this attempt, of late.
    pub(crate) fn is_broken(&self, id: &str) -> bool {
        self.broken.iter().any(|broken| broken == id)
    }

    /// Why an attempt no longer holds the lock.
    pub(crate) fn loss(&self, id: AttemptId) -> LossReason {
        if self.is_broken(&id.to_string()) {
            LossReason::Broken
        } else if self.holders().any(|entry| matches!(entry.mode, EntryMode::Exclusive)) {
            LossReason::Taken
        } else {
            LossReason::Deleted
        }
    }

    /// The lock's name, if a holder or a waiter says another one than the key.
    pub(crate) fn name(&self) -> Option<LockName> {
        self.entries().find_map(|entry| LockName::new(entry.name.as_ref()?).ok())
    }

    /// The holders, in the order of their tokens, and the waiters.
    pub(crate) fn participants(&self) -> (Vec<Participant>, Vec<Participant>) {
        let mut holders: Vec<_> = self.holders().map(Entry::participant).collect();
        holders.sort_by_key(|holder| holder.token);
        (holders, self.waiters().map(Entry::participant).collect())
    }
}

fn milliseconds(length: Duration) -> u64 {
    length.as_millis().try_into().unwrap_or(u64::MAX)
}

fn parse(id: &str) -> Result<AttemptId, LockError> {
    u128::from_str_radix(id, 16).map(AttemptId::new).map_err(nonsense)
}

fn nonsense(what: impl std::fmt::Display) -> LockError {
    LockError::new(ErrorKind::Server, Operation::Inspect)
        .because(format!("the object of the lock is not what distlock writes: {what}"))
        .remedy("give the locks a prefix of their own, and let all clients have the same version of distlock")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: &str = concat!(
        r#"{"v":1,"write":"0a","by":"acquire","token":7,"holders":["#,
        r#"{"id":"1","mode":"exclusive","beat":3,"lease":30000,"sections":2,"token":6,"since":5,"host":"h","pid":7}],"queue":["#,
        r#"{"id":"2","mode":"shared","beat":1,"lease":9000,"sections":1,"token":0,"since":5,"name":"a/b","host":"h","pid":7,"label":"l"},"#,
        r#"{"id":"3","mode":{"permits":{"take":1,"of":3}},"beat":1,"lease":9000,"sections":1,"token":0,"since":5,"host":"h","pid":8}],"#,
        r#""broken":["2a"]}"#,
    );

    /// Other versions read it.
    #[test]
    fn the_stored_form_is_what_it_was() {
        let mut state = State::read(STORED.as_bytes()).unwrap();
        let written = String::from_utf8(state.content(Operation::Acquire).unwrap()).unwrap();
        assert_eq!(written.replace(state.mark().as_deref().unwrap(), "0a"), STORED);
        let (holders, waiters) = state.participants();
        assert_eq!(holders[0].token, Some(FencingToken::new(6)));
        assert_eq!(waiters.iter().map(|waiter| waiter.pid).collect::<Vec<_>>(), [Some(7), Some(8)]);
        let least = State::default().content(Operation::Release).unwrap();
        assert!(least.ends_with(br#""by":"release","token":0,"holders":[],"queue":[]}"#));
    }

    #[test]
    fn another_layout_is_refused() {
        for layout in [0, 2] {
            let stored = STORED.replacen(r#""v":1"#, &format!(r#""v":{layout}"#), 1);
            let error = State::read(stored.as_bytes()).err().unwrap();
            assert!(error.to_string().contains(&format!("the layout {layout}")), "{error}");
        }
    }
}
