//! Measures the distance to the server, in turns with the contenders of a workload.

use std::time::{Duration, Instant};

use super::EchoRow;
use crate::contender::{Echo, Ping, Target};
use crate::failure::Outcome;
use crate::plan::Workload;
use crate::runtimes::RuntimeKind;
use crate::samples::Samples;

const WARM_UP: usize = 20;

pub(super) struct EchoTurns {
    echo: &'static Echo,
    ping: Outcome<Box<dyn Ping>>,
    samples: Samples,
    rounds: Vec<f64>,
}

impl EchoTurns {
    pub(super) async fn connect(echo: &'static Echo, target: &Target) -> Self {
        let ping = (echo.connect)(target.clone()).await;
        Self { echo, ping, samples: Samples::default(), rounds: Vec::new() }
    }

    /// Returns the median of the turn in microseconds, if there was a turn.
    pub(super) async fn turn(&mut self, length: Duration) -> Option<f64> {
        let ping = self.ping.as_mut().ok()?;
        match turn(ping.as_mut(), length).await {
            Ok(samples) => {
                let median = samples.median();
                self.rounds.extend(median);
                self.samples.append(samples);
                median
            }
            Err(failure) => {
                self.ping = Err(failure);
                None
            }
        }
    }

    pub(super) fn id(&self) -> &'static str {
        self.echo.id
    }

    pub(super) fn row(self, workload: Workload, runtime: RuntimeKind) -> EchoRow {
        EchoRow {
            echo: self.echo.id.to_owned(),
            workload,
            runtime,
            times: self.samples.summary(),
            rounds: self.rounds,
            trouble: self.ping.err().map(|failure| failure.to_string()),
        }
    }
}

async fn turn(ping: &mut dyn Ping, length: Duration) -> Outcome<Samples> {
    for _ in 0..WARM_UP {
        ping.ping().await?;
    }
    let mut samples = Samples::default();
    let end = Instant::now() + length;
    loop {
        let begun = Instant::now();
        if begun > end && samples.len() > 0 {
            return Ok(samples);
        }
        ping.ping().await?;
        samples.push(begun.elapsed());
    }
}
