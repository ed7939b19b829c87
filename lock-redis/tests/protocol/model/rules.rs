//! The rules of the protocol, each of which a test can remove.

/// A rule of the scripts or of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    // Rules of the scripts.
    HeartbeatMakesNoPlace,
    HeartbeatPassesOn,
    InsertThenPromote,
    RenewalPassesOn,
    ReleaseCompares,
    ReleasePassesOn,
    CancelEndsHolds,
    CancelEndsPlaces,
    CancelPassesOn,
    PollersAreThere,
    ClosedAreSkipped,
    DeadlineCounts,
    FenceKnowsTheTime,
    FenceIsAboveTheLast,
    /// A writer does not enter beside readers.
    WritersAreAlone,
    /// A waiter also enters beside holders that leave room for it.
    EntersBesideHolders,
    /// A waiter that does not fit stops the queue.
    TheHeadStopsTheQueue,
    /// Those that hold it together are gone when their lease is over.
    TheEndedAreRemoved,
    /// A holder counts with all its permits.
    WeightsCount,
    // Rules of the client.
    /// A pushed grant lasts from the heartbeat that it names, and not from when it is read.
    PushLastsFromItsHeartbeat,
    /// It does not last from the last heartbeat that was answered either.
    PushIgnoresLaterHeartbeats,
    /// A grant in a reply lasts from before its request was sent.
    AnswerLastsFromItsRequest,
    RenewalLastsFromItsRequest,
    /// After a reconnection the client tells the server to close the old connection, before anything else.
    OldConnectionIsKilled,
    /// After a reconnection the client sends its unanswered requests again.
    SendsAgain,
    /// The client ignores a pushed grant if it no longer waits for it.
    UnknownPushIsIgnored,
    /// The client's own timer ends its belief that it holds the lock.
    OwnTimer,
    WaitersBeat,
    /// After the loss of its place a client cancels and begins a new attempt.
    GoneBeginsAnew,
}

/// How a client holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
    /// This many permits.
    Permits(u8),
}

/// How many permits a semaphore has.
pub(crate) const PERMITS: u8 = 2;

/// All rules but some.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// One bit for each removed rule.
    without: u32,
    /// The client that polls, if one does.
    pub(crate) poller: Option<u8>,
    modes: [Mode; 3],
}

impl Rules {
    pub(crate) fn without(rules: &[Rule]) -> Self {
        let without = rules.iter().fold(0, |without, rule| without | bit(*rule));
        Self { without, poller: None, modes: [Mode::Exclusive; 3] }
    }

    pub(crate) fn with_modes(self, modes: [Mode; 3]) -> Self {
        Self { modes, ..self }
    }

    pub(crate) fn mode(&self, client: u8) -> Mode {
        self.modes[usize::from(client)]
    }

    /// Whether those with these modes can have the lock together.
    pub(crate) fn are_together(mut modes: impl Iterator<Item = Mode> + Clone) -> bool {
        let taken: u8 = modes
            .clone()
            .map(|mode| match mode {
                Mode::Exclusive => PERMITS,
                Mode::Shared => 0,
                Mode::Permits(take) => take,
            })
            .sum();
        let count = modes.clone().count();
        count <= 1 || modes.all(|mode| mode != Mode::Exclusive) && taken <= PERMITS
    }

    pub(crate) fn with_poller(self, client: u8) -> Self {
        Self { poller: Some(client), ..self }
    }

    pub(crate) fn keep(&self, rule: Rule) -> bool {
        !self.drop(rule)
    }

    pub(crate) fn drop(&self, rule: Rule) -> bool {
        self.without & bit(rule) != 0
    }
}

fn bit(rule: Rule) -> u32 {
    1 << rule as u32
}
