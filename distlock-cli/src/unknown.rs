//! What a server does not tell of the locks that it has.

use std::collections::BTreeSet;

use distlock::capabilities::{Capabilities, Fencing, Inspection, Reach};
use distlock::status::{LockKind, LockStatus};

/// A key in JSON, and the words for it.
type Unknown = (&'static str, &'static str);

pub(crate) const LEASE: Unknown = ("remaining_ms", "what is left of the lease");
pub(crate) const WAITERS: Unknown = ("waiters", "waiters of users whom this one may not see");

/// Whether there may be waiters that are not shown, of any lock.
pub(crate) fn has_hidden_waiters(capabilities: &Capabilities) -> bool {
    capabilities.inspection == Inspection::HolderAndOwnQueue
}

pub(crate) fn of(lock: &LockStatus, capabilities: &Capabilities) -> Vec<Unknown> {
    let mut all = lock.holders.iter().chain(&lock.waiters);
    let is_fenced = |kind| kind == LockKind::Lock && capabilities.fencing != Fencing::None;
    let lacks_token = lock.holders.iter().any(|one| one.token.is_none() && is_fenced(one.mode.kind()));
    // A lock of one machine has no lease.
    let has_lease = lock.is_held() && capabilities.reach == Reach::Network;
    let unknown = [
        (all.clone().any(|one| one.pid.is_none()), ("pid", "whose it is")),
        (all.any(|one| one.since.is_none()), ("since", "since when")),
        (lacks_token, ("token", "the token")),
        (has_lease && lock.remaining.is_none(), LEASE),
        (lock.is_held() && has_hidden_waiters(capabilities), WAITERS),
    ];
    unknown.into_iter().filter_map(|(is_unknown, what)| is_unknown.then_some(what)).collect()
}

/// A line for people, about several locks.
pub(crate) fn line(unknown: impl Iterator<Item = Unknown>) -> Option<String> {
    let words: Vec<_> = unknown.collect::<BTreeSet<_>>().into_iter().map(|(_, words)| words).collect();
    (!words.is_empty()).then(|| format!("not known of some: {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::{Duration, SystemTime};

    use distlock::spi::{CharacterSet, NameRules};
    use distlock::status::{HolderId, HolderInfo, Mode, Participant};
    use distlock::{FencingToken, LockName};

    use super::*;

    const NAMES: NameRules = NameRules::new(CharacterSet::ANY, 200);

    fn known() -> Participant {
        let known = Participant::new(HolderId::new("1")).with_info(&HolderInfo::of_this_process());
        known.with_since(SystemTime::UNIX_EPOCH).with_token(Some(FencingToken::new(1)))
    }

    fn keys(capabilities: &Capabilities, change: impl FnOnce(&mut LockStatus)) -> Vec<&'static str> {
        let mut lock = LockStatus::free(LockName::new("a").unwrap());
        (lock.holders, lock.waiters) = (vec![known()], vec![known().with_token(None)]);
        lock.remaining = Some(Duration::ZERO);
        change(&mut lock);
        of(&lock, capabilities).into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn what_is_missing_and_could_be_there_is_unknown() {
        let network = Capabilities::new("test", Reach::Network, NAMES);
        let fenced = network.clone().with_fencing(Fencing::Durable);
        assert_eq!(keys(&fenced, |_| {}), [""; 0]);
        assert_eq!(keys(&fenced, |lock| lock.waiters[0].pid = None), ["pid"]);
        assert_eq!(keys(&fenced, |lock| lock.holders[0].since = None), ["since"]);
        assert_eq!(keys(&fenced, |lock| lock.holders[0].token = None), ["token"]);
        assert_eq!(keys(&fenced, |lock| lock.remaining = None), ["remaining_ms"]);
        let of_others = network.clone().with_inspection(Inspection::HolderAndOwnQueue);
        assert_eq!(keys(&of_others, |_| {}), ["waiters"]);
        assert_eq!(keys(&of_others, |lock| lock.holders.clear()), [""; 0], "a free lock has none");
    }

    #[test]
    fn what_cannot_be_there_is_not_unknown() {
        let network = Capabilities::new("test", Reach::Network, NAMES);
        assert_eq!(keys(&network, |lock| lock.holders[0].token = None), [""; 0], "no tokens");
        let fenced = network.with_fencing(Fencing::Durable);
        let permits = Mode::Permits { take: std::num::NonZeroU32::MIN, of: std::num::NonZeroU32::MIN };
        let holder = known().with_mode(permits).with_token(None);
        assert_eq!(keys(&fenced, |lock| lock.holders[0] = holder), [""; 0], "a permit fences nothing");
        let free = |lock: &mut LockStatus| (lock.holders, lock.remaining) = (Vec::new(), None);
        assert_eq!(keys(&fenced, free), [""; 0], "no holder");
        let machine = Capabilities::new("test", Reach::Machine, NAMES);
        assert_eq!(keys(&machine, |lock| lock.remaining = None), [""; 0], "no lease");
    }

    #[test]
    fn people_read_it_once() {
        assert_eq!(line([LEASE, WAITERS, LEASE].into_iter()).unwrap().matches("lease").count(), 1);
        assert_eq!(line(std::iter::empty()), None);
    }
}
