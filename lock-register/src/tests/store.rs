//! A store in memory. A test says when each request is carried out, and whether its answer arrives.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{LockError, Operation};
use serde_json::Value;

use crate::{Register, Written};

/// A store, where each object is written by one version after the other.
#[derive(Debug, Clone, Default)]
pub(super) struct MemoryStore(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    objects: HashMap<String, (Vec<u8>, u64)>,
    versions: u64,
    /// What has not been carried out.
    open: BTreeMap<u64, Request>,
    answers: HashMap<u64, Answer>,
    sent: u64,
    /// Requests wait until the test lets them go on.
    is_slow: bool,
    /// It checks the condition of a write when that is sent.
    is_careless: bool,
    pace: Duration,
    reads: u64,
    writes: u64,
}

#[derive(Debug)]
struct Request {
    key: String,
    /// The content, and the version that is the condition.
    write: Option<(Vec<u8>, Option<u64>)>,
    /// Whether the condition was met when it was sent.
    was_met: bool,
}

#[derive(Debug, Clone)]
enum Answer {
    Read(Option<(Vec<u8>, u64)>),
    Done(u64),
    Conflict,
    Lost,
}

fn id_of(text: &Value) -> u128 {
    u128::from_str_radix(text.as_str().unwrap(), 16).unwrap()
}

fn lost() -> LockError {
    lock_kit::no_answer(Operation::Acquire)
}

impl Inner {
    fn carry_out(&mut self, number: u64) -> Answer {
        let Some(request) = self.open.remove(&number) else { return Answer::Lost };
        let now = self.objects.get(&request.key);
        let Some((content, condition)) = request.write else {
            self.reads += 1;
            return Answer::Read(now.cloned());
        };
        self.writes += 1;
        let is_met =
            if self.is_careless { request.was_met } else { now.map(|(_, version)| *version) == condition };
        if !is_met {
            return Answer::Conflict;
        }
        assert!(now.is_none_or(|(former, _)| *former != content), "a write that changes nothing");
        self.versions += 1;
        self.objects.insert(request.key.clone(), (content, self.versions));
        Answer::Done(self.versions)
    }
}

impl MemoryStore {
    /// From now on, requests wait until the test carries them out.
    pub(super) fn slow_down(&self) {
        self.0.lock().is_slow = true;
    }

    /// From now on, one client may write an object this often.
    pub(super) fn set_pace(&self, pace: Duration) {
        self.0.lock().pace = pace;
    }

    /// From now on, it checks a condition and writes in two steps.
    pub(super) fn become_careless(&self) {
        self.0.lock().is_careless = true;
    }

    /// From now on, requests are answered at once. What waited is never answered.
    pub(super) fn speed_up(&self) {
        self.0.lock().is_slow = false;
    }

    /// The requests that have not been carried out.
    pub(super) fn open(&self) -> Vec<u64> {
        self.0.lock().open.keys().copied().collect()
    }

    /// Carries a request out, whose answer gets lost unless it is [let through](MemoryStore::answer).
    pub(super) fn carry_out(&self, number: u64) -> Carried {
        Carried { answer: self.0.lock().carry_out(number), number }
    }

    pub(super) fn answer(&self, carried: Carried) {
        self.0.lock().answers.insert(carried.number, carried.answer);
    }

    /// The client learns that the outcome is not known; the request may still be carried out.
    pub(super) fn lose(&self, number: u64) {
        self.answer(Carried { answer: Answer::Lost, number });
    }

    /// The store refuses a write for another one that it is about to carry out; it answers no read like that.
    pub(super) fn refuse(&self, number: u64) {
        let mut inner = self.0.lock();
        if inner.open.get(&number).is_some_and(|request| request.write.is_some()) {
            inner.open.remove(&number);
            inner.answers.insert(number, Answer::Conflict);
        }
    }

    /// How often objects were written.
    pub(super) fn versions(&self) -> u64 {
        self.0.lock().versions
    }

    /// How many reads and writes were carried out, or refused.
    pub(super) fn counts(&self) -> (u64, u64) {
        let inner = self.0.lock();
        (inner.reads, inner.writes)
    }

    /// What the object of the lock, or of the semaphore, says.
    pub(super) fn object(&self) -> Option<Value> {
        let inner = self.0.lock();
        inner.objects.values().next().map(|(content, _)| serde_json::from_slice(content).unwrap())
    }

    /// The tokens of the holders, and their ids.
    pub(super) fn held(&self) -> HashMap<u64, u128> {
        let object = self.object().unwrap_or_default();
        let holders = object["holders"].as_array().cloned().unwrap_or_default();
        holders.iter().map(|holder| (holder["token"].as_u64().unwrap(), id_of(&holder["id"]))).collect()
    }

    /// The ids of those from which it was taken of late.
    pub(super) fn broken(&self) -> Vec<u128> {
        let object = self.object().unwrap_or_default();
        let broken = object["broken"].as_array().cloned().unwrap_or_default();
        broken.iter().map(id_of).collect()
    }

    /// The ids of the holders, and those of the waiters in their order.
    pub(super) fn ids(&self) -> (Vec<u128>, Vec<u128>) {
        let object = self.object().unwrap_or_default();
        let ids = |of: &str| {
            let entries = object[of].as_array().cloned().unwrap_or_default();
            entries.iter().map(|entry| id_of(&entry["id"])).collect()
        };
        (ids("holders"), ids("queue"))
    }

    async fn ask(&self, key: &str, write: Option<(Vec<u8>, Option<u64>)>) -> Answer {
        let number = {
            let mut inner = self.0.lock();
            inner.sent += 1;
            let number = inner.sent;
            let now = inner.objects.get(key).map(|(_, version)| *version);
            let was_met = write.as_ref().is_some_and(|(_, condition)| *condition == now);
            inner.open.insert(number, Request { key: key.to_owned(), write, was_met });
            if !inner.is_slow {
                return inner.carry_out(number);
            }
            number
        };
        poll_fn(|_| self.0.lock().answers.remove(&number).map_or(Poll::Pending, Poll::Ready)).await
    }
}

/// A request that was carried out.
pub(super) struct Carried {
    number: u64,
    answer: Answer,
}

impl Register for MemoryStore {
    type Version = u64;

    async fn read(&self, key: &str) -> Result<Option<(Vec<u8>, u64)>, LockError> {
        match self.ask(key, None).await {
            Answer::Read(read) => Ok(read),
            _ => Err(lost()),
        }
    }

    async fn write(&self, key: &str, content: Vec<u8>, if_still: Option<&u64>) -> Written<u64> {
        match self.ask(key, Some((content, if_still.copied()))).await {
            Answer::Done(version) => Written::Done(version),
            Answer::Conflict => Written::Conflict,
            _ => Written::Unknown(lost()),
        }
    }

    fn pace(&self) -> Duration {
        self.0.lock().pace
    }
}
