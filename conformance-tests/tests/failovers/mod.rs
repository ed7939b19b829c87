//! Makes one server after the other the primary: as often as `DISTLOCK_FAILOVERS` says, for each kind of harm.

mod holders;

use std::process::ExitCode;
use std::time::Duration;

use conformance_tests::{Contest, Failure, Outcome, contend_if_told};
use libtest_mimic::{Arguments, Completion, Trial};
use test_servers::{Data, RedisSentinels, RedisServer, TcpProxy, left_out, sentinel_url};
use tokio::runtime::Runtime;

use crate::connection::Connection;

/// Half of it is two renewal intervals, for which a client relies on a primary.
const LEASE: Duration = Duration::from_secs(4);

/// Longer than a failover and the pause after it.
const CLINGS: Duration = Duration::from_secs(20);

/// The value is generous: it costs time only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);

/// Contenders that reach all sentinels; two more lose contact with them in each round.
const OTHERS: usize = 6;

/// How often the primary is harmed, unless `DISTLOCK_FAILOVERS` has another number.
const ROUNDS: usize = 4;

/// What happens to the primary.
#[derive(Debug, Clone, Copy)]
enum Harm {
    Kill,
    Stop,
    /// It goes on, and takes writes, until a sentinel tells it after some seconds.
    Depose,
}

pub(crate) fn main() -> ExitCode {
    if let Some(code) = contend_if_told::<Connection>() {
        return code;
    }
    let tests = [
        ("primaries_that_are_killed", Harm::Kill),
        ("primaries_that_are_stopped_and_run_on", Harm::Stop),
        ("primaries_that_are_deposed", Harm::Depose),
    ];
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let mut trials = vec![trial("a_hundred_holders", || Runtime::new()?.block_on(holders::run()))];
    trials.extend(tests.map(|(name, harm)| trial(name, move || run(name, harm))));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, run: impl FnOnce() -> Outcome + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || match left_out("redis") {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => run().map(|()| Completion::Completed).map_err(Into::into),
    })
}

fn run(name: &str, harm: Harm) -> Outcome {
    let rounds = std::env::var("DISTLOCK_FAILOVERS").ok().and_then(|rounds| rounds.parse().ok());
    Runtime::new()?.block_on(async {
        let sentinels = RedisSentinels::start(None).await?;
        let each = sentinels.sentinels().iter();
        let proxies = each.map(|one| TcpProxy::start(one.address())).collect::<Outcome<Vec<_>>>()?;
        let lonely = with_lease(&sentinel_url(proxies.iter().map(TcpProxy::address)));
        let mut addresses = vec![lonely.clone(), lonely];
        addresses.extend(std::iter::repeat_n(with_lease(&sentinels.url()), OTHERS));
        let mut contest = Contest::start(&addresses, PATIENCE).await?;
        contest.all_go_on(3).await?;
        let others: Vec<_> = (2..addresses.len()).collect();
        for _ in 0..rounds.unwrap_or(ROUNDS) {
            let old = sentinels.primary().await?;
            // It relies on the old primary for as long as it may.
            contest.cling(0, CLINGS).await?;
            proxies.iter().for_each(TcpProxy::sever);
            harm.begin(&sentinels, old).await?;
            contest.go_on(&others, 3).await?;
            harm.end(old).await?;
            proxies.iter().for_each(TcpProxy::heal);
            contest.all_go_on(3).await?;
            sentinels.settled().await?;
        }
        let contested = contest.end().await?;
        println!("{name}: {contested:?}");
        if contested.losses == 0 {
            return Err(Failure::new("no harm was done: the client that was cut off has kept the lock"));
        }
        Ok(())
    })
}

fn with_lease(url: &str) -> String {
    format!("{url}?lease={}s", LEASE.as_secs())
}

impl Harm {
    async fn begin(self, sentinels: &RedisSentinels, old: &RedisServer) -> Outcome {
        match self {
            Self::Kill => old.kill()?,
            Self::Stop => old.stop()?,
            Self::Depose => sentinels.depose().await?,
        }
        sentinels.primary_after(old.address()).await.map(drop)
    }

    async fn end(self, old: &RedisServer) -> Outcome {
        match self {
            Self::Kill => old.restart(Data::Kept).await,
            Self::Stop => old.resume(),
            Self::Depose => Ok(()),
        }
    }
}
