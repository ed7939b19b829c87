//! A survey that counts requests by kind, whether or not the server does.

use async_trait::async_trait;

use crate::contender::Target;
use crate::failure::Outcome;
use crate::subject::{Command, Counters, Sender, Subject, Survey, Tally};

pub(super) struct Counted {
    survey: Box<dyn Survey>,
    tally: Option<Box<dyn Tally>>,
    target: Target,
}

impl Counted {
    pub(super) async fn start(subject: &Subject, target: &Target) -> Outcome<Self> {
        let survey = (subject.survey)(target.clone()).await?;
        let tally = subject.tally.map(|tally| tally(target)).transpose()?;
        let url = tally.as_ref().map_or_else(|| target.url.clone(), |tally| tally.url());
        Ok(Self { survey, tally, target: Target { url, ..target.clone() } })
    }

    /// Returns where clients have to connect to be counted.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }
}

#[async_trait]
impl Survey for Counted {
    async fn describe(&mut self) -> Outcome<String> {
        self.survey.describe().await
    }

    async fn counters(&mut self) -> Outcome<Counters> {
        let mut counters = self.survey.counters().await?;
        if let Some(tally) = &self.tally {
            let command = |calls| Command { calls, microseconds: 0, sender: Sender::Client };
            counters.commands =
                tally.requests().into_iter().map(|(kind, calls)| (kind, command(calls))).collect();
        }
        Ok(counters)
    }
}
