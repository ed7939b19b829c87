//! A monitor that counts requests by kind, whether or not the server does.

use async_trait::async_trait;

use crate::contender::Target;
use crate::failure::Outcome;
use crate::subject::{Command, Counters, RequestCounter, Sender, ServerMonitor, Subject};

pub(super) struct Counted {
    monitor: Box<dyn ServerMonitor>,
    request_counter: Option<Box<dyn RequestCounter>>,
    target: Target,
}

impl Counted {
    pub(super) async fn start(subject: &Subject, target: &Target) -> Outcome<Self> {
        let monitor = (subject.monitor)(target.clone()).await?;
        let request_counter =
            subject.request_counter.map(|request_counter| request_counter(target)).transpose()?;
        let url = request_counter
            .as_ref()
            .map_or_else(|| target.url.clone(), |request_counter| request_counter.url());
        Ok(Self { monitor, request_counter, target: Target { url, ..target.clone() } })
    }

    /// Returns where clients have to connect to be counted.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }
}

#[async_trait]
impl ServerMonitor for Counted {
    async fn describe(&mut self) -> Outcome<String> {
        self.monitor.describe().await
    }

    async fn counters(&mut self) -> Outcome<Counters> {
        let mut counters = self.monitor.counters().await?;
        if let Some(request_counter) = &self.request_counter {
            let command = |calls| Command { calls, microseconds: 0, sender: Sender::Client };
            counters.commands =
                request_counter.requests().into_iter().map(|(kind, calls)| (kind, command(calls))).collect();
        }
        Ok(counters)
    }
}
