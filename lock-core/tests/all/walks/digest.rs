//! A state as a number that two states share if what can happen from there on is the same: ids and tokens count by their first
//! appearance, and moments as far as they are from now.

use std::fmt::{Debug, Write};
use std::hash::{DefaultHasher, Hash, Hasher};

use lock_core::Moment;

use super::network::{Answer, Id, Request, lease_of};

pub(crate) struct Digest {
    now: Moment,
    text: String,
    ids: Vec<Id>,
    leases: Vec<u64>,
}

impl Digest {
    pub(crate) fn at(now: Moment) -> Self {
        Self { now, text: String::new(), ids: Vec::new(), leases: Vec::new() }
    }

    pub(crate) fn add(&mut self, what: impl Debug) {
        write!(self.text, "{what:?};").unwrap();
    }

    /// In tenths of seconds: the pauses before retries are random, and shorter.
    pub(crate) fn moment(&mut self, moment: Moment) {
        self.add((moment.since(self.now).as_millis() / 100, self.now.since(moment).as_millis() / 100));
    }

    pub(super) fn id(&mut self, id: Id) {
        let place = place(&mut self.ids, id);
        self.add(place);
    }

    pub(crate) fn token(&mut self, token: u64) {
        let place = place(&mut self.leases, lease_of(token));
        self.add((place, token - lease_of(token)));
    }

    pub(super) fn request(&mut self, request: &Request) {
        match request {
            Request::Acquire { id, mode, tries } => {
                self.id(*id);
                self.add((mode, tries));
            }
            Request::Cancel { id, .. } => {
                self.id(*id);
                self.add("cancel");
            }
            Request::Release { id, .. } => {
                self.id(*id);
                self.add("release");
            }
            Request::Renew { ids } => ids.iter().for_each(|id| self.id(*id)),
            Request::Downgrade { from, id } => {
                self.id(*from);
                self.id(*id);
                self.add("downgrade");
            }
        }
    }

    pub(super) fn answer(&mut self, answer: &Answer) {
        match answer {
            Answer::Granted { token, since, .. } => {
                self.token(*token);
                self.moment(*since);
            }
            other => self.add(other),
        }
    }

    pub(super) fn ids(&self) -> Vec<Id> {
        self.ids.clone()
    }

    pub(super) fn tokens(&self) -> Vec<u64> {
        self.leases.clone()
    }

    pub(crate) fn number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        hasher.finish()
    }
}

fn place<T: PartialEq>(all: &mut Vec<T>, one: T) -> usize {
    let place = all.iter().position(|other| *other == one);
    place.unwrap_or_else(|| {
        all.push(one);
        all.len() - 1
    })
}
