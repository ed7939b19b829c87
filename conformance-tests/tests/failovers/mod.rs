//! Makes one server after the other the primary: as often as `DISTLOCK_FAILOVERS` says, for each kind of harm.

mod cluster;
mod holders;
mod network;
mod sentinel;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use conformance_tests::{Contest, Failure, Outcome, contend_if_told};
use libtest_mimic::{Arguments, Completion, Trial};
use test_servers::{Data, RedisCluster, RedisSentinels, RedisServer, ServerOptions, TcpProxy, left_out};
use tokio::runtime::Runtime;

use crate::connection::Connection;

/// The lock of the contest.
const LOCK: &str = "contest";

/// Half of it is two renewal intervals, for which a client relies on a primary.
const LEASE: Duration = Duration::from_secs(4);

/// Longer than a failover and the pause after it.
const CLINGS: Duration = Duration::from_secs(20);

/// The value is generous: it costs time only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(180);

/// Contenders that reach all witnesses; two more lose contact with them in each round.
const OTHERS: usize = 6;

/// How often the primary is harmed, unless `DISTLOCK_FAILOVERS` has another number.
const ROUNDS: usize = 2;

/// What happens to the primary.
#[derive(Debug, Clone, Copy)]
enum Harm {
    Kill,
    Stop,
    /// Another becomes the primary, and this one goes on, and takes writes, until it learns of that.
    Depose,
    /// The other servers do not reach it, nor it them, and all clients reach it.
    Isolate,
    /// The hash slot of the lock moves to another primary.
    Move,
}

/// Servers of which one after the other has the lock.
trait Site: Sized {
    async fn start(options: &ServerOptions) -> Outcome<Self>;

    /// The servers that say which one is the primary.
    fn witnesses(&self) -> Vec<SocketAddr>;

    /// The URL for a client that knows these witnesses.
    fn url(witnesses: impl Iterator<Item = SocketAddr>) -> String;

    /// The server that has the lock.
    async fn primary(&self) -> Outcome<&RedisServer>;

    /// Gives the lock to another server, and returns when this one has it.
    async fn replace(&self, old: &RedisServer, harm: Harm) -> Outcome;

    /// The servers on the side of this one when it is isolated.
    fn beside<'a>(&'a self, primary: &'a RedisServer) -> Vec<&'a RedisServer>;

    /// Waits until another harm can be done.
    async fn settled(&self) -> Outcome;
}

pub(crate) fn main() -> ExitCode {
    if let Some(code) = contend_if_told::<Connection>() {
        return code;
    }
    if let Err(failure) = network::enter() {
        eprintln!("error: {failure}");
        return ExitCode::FAILURE;
    }
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let mut trials =
        vec![trial("a_hundred_holders".to_owned(), "redis", || Runtime::new()?.block_on(holders::run()))];
    for (name, harm) in [
        ("primaries_that_are_killed", Harm::Kill),
        ("primaries_that_are_stopped_and_run_on", Harm::Stop),
        ("primaries_that_are_deposed", Harm::Depose),
        ("primaries_that_are_isolated", Harm::Isolate),
    ] {
        trials.push(contest::<RedisSentinels>("sentinel", name, harm));
        trials.push(contest::<RedisCluster>("cluster", name, harm));
    }
    trials.push(contest::<RedisCluster>("cluster", "hash_slots_that_move", Harm::Move));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn contest<S: Site>(site: &str, name: &str, harm: Harm) -> Trial {
    let name = format!("{site}::{name}");
    let needs = if let Harm::Isolate = harm { network::NAMESPACES } else { "redis" };
    trial(name.clone(), needs, move || Runtime::new()?.block_on(run::<S>(&name, harm)))
}

fn trial(name: String, needs: &'static str, run: impl FnOnce() -> Outcome + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || match left_out("redis").or(left_out(needs)) {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None if needs == network::NAMESPACES && !network::is_in_it() => Ok(Completion::ignored_with(
            "NOT TESTED: this machine gives no network of its own: it takes iproute2, util-linux and user namespaces",
        )),
        None => run().map(|()| Completion::Completed).map_err(Into::into),
    })
}

async fn run<S: Site>(name: &str, harm: Harm) -> Outcome {
    let rounds = std::env::var("DISTLOCK_FAILOVERS").ok().and_then(|rounds| rounds.parse().ok());
    let options = if let Harm::Isolate = harm { network::options() } else { ServerOptions::new() };
    let site = S::start(&options).await?;
    let witnesses = site.witnesses();
    let proxies = witnesses.iter().map(|&witness| TcpProxy::start(witness)).collect::<Outcome<Vec<_>>>()?;
    let lonely = with_lease(&S::url(proxies.iter().map(TcpProxy::address)));
    let mut addresses = vec![lonely.clone(), lonely];
    addresses.extend(std::iter::repeat_n(with_lease(&S::url(witnesses.iter().copied())), OTHERS));
    let mut contest = Contest::start(&addresses, PATIENCE).await?;
    contest.all_go_on(3).await?;
    let others: Vec<_> = (2..addresses.len()).collect();
    for _ in 0..rounds.unwrap_or(ROUNDS) {
        // It relies on the primary of now for as long as it may.
        contest.cling(0, CLINGS).await?;
        let old = site.primary().await?;
        let beside = if let Harm::Isolate = harm { site.beside(old) } else { Vec::new() };
        for (proxy, witness) in proxies.iter().zip(&witnesses) {
            if beside.iter().all(|server| server.address() != *witness) {
                proxy.sever();
            }
        }
        match harm {
            Harm::Kill => old.kill()?,
            Harm::Stop => old.stop()?,
            Harm::Isolate => network::isolate(&beside)?,
            Harm::Depose | Harm::Move => {}
        }
        site.replace(old, harm).await?;
        contest.go_on(&others, 3).await?;
        match harm {
            Harm::Kill => old.restart(Data::Kept).await?,
            Harm::Stop => old.resume()?,
            Harm::Isolate => network::rejoin(&beside)?,
            Harm::Depose | Harm::Move => {}
        }
        proxies.iter().for_each(TcpProxy::heal);
        contest.all_go_on(3).await?;
        site.settled().await?;
    }
    let contested = contest.end().await?;
    println!("{name}: {contested:?}");
    if contested.losses == 0 {
        return Err(Failure::new("no harm was done: the client that was cut off has kept the lock"));
    }
    Ok(())
}

fn with_lease(url: &str) -> String {
    format!("{url}?lease={}s", LEASE.as_secs())
}
