//! How a contender connects. The suite is not run here, so the harness needs nothing else.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use conformance_tests::{Ability, Failure, Harness, Outcome};
use lock_core::{ClientBuilder, Clock, ErrorKind, LockClient, LockError, Operation};

pub(crate) struct Connection;

#[async_trait]
impl Harness for Connection {
    async fn start() -> Outcome<Self> {
        Err(Failure::new("there is no suite here"))
    }

    fn lacks(&self, _: Ability) -> Option<&'static str> {
        Some("there is no suite here")
    }

    async fn client(&self, _: ClientBuilder) -> Result<LockClient, LockError> {
        Err(LockError::new(ErrorKind::Unsupported, Operation::Connect).because("there is no suite here"))
    }

    async fn leftovers(&self) -> Outcome<Vec<String>> {
        Ok(Vec::new())
    }

    async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError> {
        match address.strip_suffix(FAST) {
            Some(address) => distlock::connect_with(address, builder.clock(fast_clock())).await,
            None => distlock::connect_with(address, builder).await,
        }
    }
}

const FAST: &str = " with a fast clock";

/// The address of a contender for whom three times as much time passes: what it waits for is over too early.
#[allow(dead_code, reason = "only some of the programs have such contenders")]
pub(crate) fn with_a_fast_clock(address: &str) -> String {
    format!("{address}{FAST}")
}

fn fast_clock() -> Clock {
    let (clock, time) = Clock::manual();
    std::thread::spawn(move || {
        let mut before = Instant::now();
        loop {
            std::thread::sleep(Duration::from_millis(2));
            let now = Instant::now();
            time.advance((now - before) * 3);
            before = now;
        }
    });
    clock
}
