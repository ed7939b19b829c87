//! Eight processes increment a number that only a lock in etcd protects, while members of a cluster are killed and stopped.

#[cfg(unix)]
#[path = "ensemble/connection.rs"]
mod connection;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    cluster::main()
}

#[cfg(not(unix))]
fn main() {
    println!("the fixture for etcd needs a Unix system, so none of its tests has run");
}

#[cfg(unix)]
mod cluster {
    use std::process::ExitCode;
    use std::time::Duration;

    use conformance_tests::{Contest, Outcome, contend_if_told, ensure};
    use libtest_mimic::{Arguments, Completion, Trial};
    use test_servers::{Data, EtcdServer, left_out};
    use tokio::runtime::Runtime;

    use crate::connection::Connection;

    const OPTIONS: &str = "?lease=6s&timeout=1s";

    /// Longer than a holder without contact believes in its lease.
    const CLINGS: Duration = Duration::from_secs(20);

    /// The value is generous: it costs time only when something is wrong.
    const PATIENCE: Duration = Duration::from_secs(90);

    /// Contenders that know only one member; two more know all of them.
    const PER_MEMBER: usize = 2;

    #[derive(Debug, Clone, Copy)]
    enum Harm {
        Kill,
        Stop,
    }

    /// The member that comes so many after the leader. A leader that is only stopped is left out: when it goes on, some versions of the
    /// server end leases that clients have renewed at its successor.
    const TESTS: [(&str, usize, Harm); 3] = [
        ("a_leader_that_is_killed", 0, Harm::Kill),
        ("a_follower_that_is_killed", 1, Harm::Kill),
        ("a_follower_that_is_stopped_and_runs_on", 1, Harm::Stop),
    ];

    pub(crate) fn main() -> ExitCode {
        if let Some(code) = contend_if_told::<Connection>() {
            return code;
        }
        let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
        let trials = TESTS.map(|(name, after_leader, harm)| {
            Trial::ignorable_test(name, move || match left_out("etcd") {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => Ok(Runtime::new()?
                    .block_on(contend(name, after_leader, harm))
                    .map(|()| Completion::Completed)?),
            })
        });
        libtest_mimic::run(&arguments, trials.into()).exit_code()
    }

    /// Returns the place of the leader, once there is one.
    async fn leader(members: &[EtcdServer]) -> Outcome<usize> {
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            match EtcdServer::leader(members).await {
                Err(_) if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                leader => return leader,
            }
        }
    }

    async fn contend(name: &str, after_leader: usize, harm: Harm) -> Outcome {
        let members = EtcdServer::start_cluster().await?;
        let all: Vec<_> = members.iter().map(EtcdServer::address).collect();
        let known = all.iter().map(std::slice::from_ref).flat_map(|one| [one; PER_MEMBER]);
        let known = known.chain([&all[..]; PER_MEMBER]);
        let addresses: Vec<_> = known.map(|known| members[0].url_at(known, "locks") + OPTIONS).collect();
        let mut contest = Contest::start(&addresses, PATIENCE).await?;
        contest.all_go_on(3).await?;
        // The holder is a client of only the member that is harmed, and can go nowhere else.
        let (harmed, cut_off) = loop {
            let leader = leader(&members).await?;
            let harmed = (leader + after_leader) % members.len();
            let cut_off: Vec<_> = (0..PER_MEMBER).map(|client| harmed * PER_MEMBER + client).collect();
            contest.cling(cut_off[0], CLINGS).await?;
            // Another member may lead by now.
            if EtcdServer::leader(&members).await.is_ok_and(|now| now == leader) {
                break (harmed, cut_off);
            }
        };
        match harm {
            Harm::Kill => members[harmed].kill()?,
            Harm::Stop => members[harmed].stop()?,
        }
        let others: Vec<_> = (0..addresses.len()).filter(|client| !cut_off.contains(client)).collect();
        contest.go_on(&others, 3).await?;
        match harm {
            Harm::Kill => members[harmed].restart(Data::Kept).await?,
            Harm::Stop => members[harmed].resume()?,
        }
        contest.all_go_on(3).await?;
        let contested = contest.end().await?;
        println!("{name}: {contested:?}");
        ensure!(contested.losses > 0, "no harm was done: the client that was cut off has kept the lock");
        Ok(())
    }
}
