//! Disturbs one ensemble in several ways, one after the other.

mod connection;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use conformance_tests::{Contest, Failure, Outcome, contend_if_told};
use libtest_mimic::{Arguments, Completion, Trial};
use test_servers::{Data, ZooKeeperEnsemble, left_out};
use tokio::runtime::Runtime;

use connection::Connection;

/// Eight ticks of the servers. Without an answer, a client considers its session valid for two thirds of it.
const SESSION: Duration = Duration::from_secs(4);

/// Longer than the session of a holder without contact can last.
const CLINGS: Duration = Duration::from_secs(12);

/// The value is generous: it costs time only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(90);

/// Contenders that know only one member; two more know all of them.
const PER_MEMBER: usize = 2;

/// A disturbance of a member, given by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    Kill,
    Stop,
    /// Its clients can reach it, and it can reach no other member; none of them is notified.
    Isolate,
    /// Like `Isolate`, but all of them notice immediately.
    Sever,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Leader,
    Follower,
}

const TESTS: [(&str, Victim, Harm); 6] = [
    ("a_leader_that_is_killed", Victim::Leader, Harm::Kill),
    ("a_leader_that_is_stopped_and_runs_on", Victim::Leader, Harm::Stop),
    ("a_leader_that_is_isolated", Victim::Leader, Harm::Isolate),
    ("a_follower_that_is_stopped_and_runs_on", Victim::Follower, Harm::Stop),
    ("a_follower_that_is_isolated", Victim::Follower, Harm::Isolate),
    ("a_follower_whose_connections_are_cut", Victim::Follower, Harm::Sever),
];

pub(crate) fn main() -> ExitCode {
    if let Some(code) = contend_if_told::<Connection>() {
        return code;
    }
    // One after the other, because they share the ensemble.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let stage = Arc::new(Stage::default());
    let trials = TESTS.map(|(name, victim, harm)| {
        let stage = Arc::clone(&stage);
        Trial::ignorable_test(name, move || match left_out("zookeeper") {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => stage.run(name, victim, harm).map(|()| Completion::Completed).map_err(Into::into),
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

/// The ensemble. The first test starts it, and after a failure the next test starts another.
#[derive(Default)]
struct Stage(Mutex<Option<ZooKeeperEnsemble>>);

impl Stage {
    fn run(&self, name: &str, victim: Victim, harm: Harm) -> Outcome {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = Runtime::new()?;
        runtime.block_on(async {
            let ensemble = match place.take() {
                Some(ensemble) => ensemble,
                None => ZooKeeperEnsemble::start().await?,
            };
            contend(&ensemble, name, victim, harm).await?;
            *place = Some(ensemble);
            Ok(())
        })
    }
}

async fn contend(ensemble: &ZooKeeperEnsemble, name: &str, victim: Victim, harm: Harm) -> Outcome {
    let leader = ensemble.leader().await?;
    let member = match victim {
        Victim::Leader => leader,
        Victim::Follower => ensemble.others(leader)[0],
    };
    let addresses = addresses(ensemble, name);
    let mut contest = Contest::start(&addresses, PATIENCE).await?;
    contest.all_go_on(3).await?;
    // The holder is a client of only the member that is disturbed, and can go nowhere else.
    let cut_off: Vec<_> = (0..PER_MEMBER).map(|client| member * PER_MEMBER + client).collect();
    contest.cling(cut_off[0], CLINGS).await?;
    harm.begin(ensemble, member)?;
    let others: Vec<_> = (0..addresses.len()).filter(|client| !cut_off.contains(client)).collect();
    contest.go_on(&others, 3).await?;
    harm.end(ensemble, member).await?;
    contest.all_go_on(3).await?;
    let contested = contest.end().await?;
    println!("{name}: {contested:?}");
    if contested.losses == 0 {
        return Err(Failure::new("no harm was done: the client that was cut off has kept the lock"));
    }
    Ok(())
}

/// Returns the addresses that the contenders connect to.
fn addresses(ensemble: &ZooKeeperEnsemble, name: &str) -> Vec<String> {
    let root = format!("/locks/{name}");
    let session = format!("{}s", SESSION.as_secs());
    let options = [("session_timeout", session.as_str())];
    let mut addresses = Vec::new();
    for member in ensemble.members() {
        let address = member.url_of(&[member.address()], &root, &options);
        addresses.extend(std::iter::repeat_n(address, PER_MEMBER));
    }
    addresses.extend(std::iter::repeat_n(ensemble.url_of(&root, &options), PER_MEMBER));
    addresses
}

impl Harm {
    fn begin(self, ensemble: &ZooKeeperEnsemble, member: usize) -> Outcome {
        match self {
            Self::Kill => ensemble.member(member).kill(),
            Self::Stop => ensemble.member(member).stop(),
            Self::Isolate => {
                ensemble.isolate(member);
                Ok(())
            }
            Self::Sever => {
                ensemble.others(member).into_iter().for_each(|other| ensemble.sever(member, other));
                Ok(())
            }
        }
    }

    async fn end(self, ensemble: &ZooKeeperEnsemble, member: usize) -> Outcome {
        match self {
            Self::Kill => ensemble.member(member).restart(Data::Kept).await?,
            Self::Stop => ensemble.member(member).resume()?,
            Self::Isolate | Self::Sever => ensemble.heal(),
        }
        let whole = async {
            while ensemble.member(member).role().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, whole).await;
        waited.map_err(|_| Failure::new("the member that harm was done to does not come back"))
    }
}
