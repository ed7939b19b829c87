//! The rules of the protocol, each of which can be taken out.

/// A rule of the scripts or of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    // Of the scripts.
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
    // Of the client.
    /// A grant that is pushed lasts from the heartbeat that it names, and not from when it is read.
    PushLastsFromItsHeartbeat,
    /// Nor from the last heartbeat that was answered.
    PushIgnoresLaterHeartbeats,
    /// A grant that is answered lasts from before its request was sent.
    AnswerLastsFromItsRequest,
    RenewalLastsFromItsRequest,
    /// After a reconnection the server is told to end the old connection, before anything else.
    OldConnectionIsKilled,
    /// After a reconnection what was not answered is sent again.
    SendsAgain,
    /// What a grant is pushed to that nobody waits for any more is not believed.
    UnknownPushIsIgnored,
    /// The client's own timer ends a belief.
    OwnTimer,
    WaitersBeat,
    /// A place that is gone leads to a cancel and a new attempt.
    GoneBeginsAnew,
}

/// All rules but some.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// A bit for each that is taken out.
    without: u32,
    /// The client that polls.
    pub(crate) poller: Option<u8>,
}

impl Rules {
    pub(crate) fn without(rules: &[Rule]) -> Self {
        Self { without: rules.iter().fold(0, |without, rule| without | bit(*rule)), poller: None }
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
