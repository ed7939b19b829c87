//! One contest, and several kinds of harm in it, one after the other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use conformance_tests::{Contest, Contested, During, Failure, Outcome};
use test_servers::{Direction, TcpProxy};
use tokio::time::sleep;

use crate::dice::Dice;
use crate::place::{Kind, LEASE, Server};

/// How often each contender has the lock between two kinds of harm.
const VISITS: usize = 30;

/// The value is generous: it costs time only when something is wrong.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    KillHolder,
    KillWaiter,
    StopHolder,
    StopWaiter,
    // From here on, harm to the server.
    KillServer,
    StopServer,
    Cut,
    Sever,
    Silence,
    SilenceOfTheServer,
}

impl Harm {
    const OF_PROCESSES: [Self; 4] = [Self::KillHolder, Self::KillWaiter, Self::StopHolder, Self::StopWaiter];
    const OF_SERVERS: [Self; 6] =
        [Self::KillServer, Self::StopServer, Self::Cut, Self::Sever, Self::Silence, Self::SilenceOfTheServer];

    fn name(self) -> &'static str {
        match self {
            Self::KillHolder => "holder killed",
            Self::KillWaiter => "waiter killed",
            Self::StopHolder => "holder stopped",
            Self::StopWaiter => "waiter stopped",
            Self::KillServer => "server killed and started",
            Self::StopServer => "server stopped",
            Self::Cut => "connections cut",
            Self::Sever => "connections refused",
            Self::Silence => "silence",
            Self::SilenceOfTheServer => "replies held back",
        }
    }

    fn ends_connections(self) -> bool {
        matches!(self, Self::KillServer | Self::Cut | Self::Sever)
    }
}

/// The contest ends before the proxy, and the proxy before the server.
pub(crate) struct Round {
    seed: u64,
    kind: Kind,
    /// Half of them reach the server through the proxy: those with an even number.
    contenders: usize,
    dice: Dice,
    contest: Contest,
    proxy: Option<TcpProxy>,
    server: Server,
    /// How often each kind of harm was done.
    pub(crate) harms: BTreeMap<&'static str, u32>,
}

impl Round {
    pub(crate) async fn start(kind: Kind, seed: u64) -> Outcome<Self> {
        let server = Server::start(kind).await?;
        let proxy = server.proxy()?;
        let (through, past) = (server.url(proxy.as_ref())?, server.url(None)?);
        let contenders = kind.contenders();
        let addresses: Vec<_> = (0..contenders)
            .map(|number| if number.is_multiple_of(2) { through.clone() } else { past.clone() })
            .collect();
        let contest = Contest::start(&addresses, PATIENCE).await?;
        let (dice, harms) = (Dice::new(seed), BTreeMap::new());
        Ok(Self { seed, kind, contenders, dice, contest, proxy, server, harms })
    }

    /// Does harm this often.
    pub(crate) async fn play(&mut self, times: usize) -> Outcome<Contested> {
        self.contest.all_go_on(VISITS).await?;
        // Some rounds are without harm for which a backend promises no exclusion: what is promised is checked throughout.
        let is_strict = self.dice.below(2) == 0;
        for _ in 0..times {
            let mut choice = Harm::OF_PROCESSES.to_vec();
            if self.proxy.is_some() {
                choice.extend(Harm::OF_SERVERS);
            }
            choice.retain(|harm| !(is_strict && self.overlaps(*harm)));
            let harm = choice[self.dice.below(choice.len())];
            *self.harms.entry(harm.name()).or_default() += 1;
            self.strike(harm).await.during(harm.name())?;
        }
        self.contest.end().await
    }

    fn overlaps(&self, harm: Harm) -> bool {
        self.kind.ends_with_connections() && harm.ends_connections()
    }

    async fn strike(&mut self, harm: Harm) -> Outcome {
        // Which are behind the proxy, and which not.
        let half = self.contenders / 2;
        let (holder, waiter) = (self.dice.below(half) * 2, self.dice.below(half) * 2 + 1);
        let (clings, time) = (self.dice.time(LEASE * 2), self.dice.time(LEASE * 2));
        self.contest.cling(holder, clings).await?;
        let began = self.contest.note(format!("{} for {time:?}; contender {holder} holds", harm.name()));
        self.harm(harm, time, holder, waiter).await?;
        self.contest.note("it is over");
        self.contest.all_go_on(VISITS).await?;
        if self.overlaps(harm) {
            self.contest.excuse(began);
        }
        Ok(())
    }

    async fn harm(&mut self, harm: Harm, time: Duration, holder: usize, waiter: usize) -> Outcome {
        let (contest, server) = (&mut self.contest, &self.server);
        match harm {
            Harm::KillHolder => contest.replace(holder).await?,
            Harm::KillWaiter => contest.replace(waiter).await?,
            Harm::StopHolder | Harm::StopWaiter => {
                let who = if harm == Harm::StopHolder { holder } else { waiter };
                contest.stop(who)?;
                sleep(time).await;
                contest.resume(who)?;
            }
            Harm::KillServer => {
                server.kill()?;
                sleep(time / 4).await;
                server.restart().await?;
            }
            Harm::StopServer => {
                server.stop()?;
                sleep(time).await;
                server.resume()?;
            }
            Harm::Cut | Harm::Sever | Harm::Silence | Harm::SilenceOfTheServer => {
                let proxy = self.proxy.as_ref().ok_or_else(|| Failure::new("there is no proxy"))?;
                disturb(proxy, harm);
                sleep(time).await;
                proxy.heal();
            }
        }
        Ok(())
    }

    /// Writes all that is known about a failure into a file of the folder, and returns its path.
    pub(crate) fn keep(&self, failure: &Failure, folder: &Path) -> Outcome<PathBuf> {
        std::fs::create_dir_all(folder)?;
        let log =
            self.server.log().map(|log| std::fs::read_to_string(&log).during(log.display())).transpose()?;
        let text = format!(
            "{:?}, seed {}: {failure}\n\nThe history, in nanoseconds:\n{}\n\nThe log of the server:\n{}\n",
            self.kind,
            self.seed,
            self.contest.history().join("\n"),
            log.unwrap_or_default()
        );
        let file = folder.join(format!("{:?}-{}.txt", self.kind, self.seed).to_lowercase());
        std::fs::write(&file, text).during(file.display())?;
        Ok(file)
    }
}

fn disturb(proxy: &TcpProxy, harm: Harm) {
    match harm {
        Harm::Cut => proxy.cut(),
        Harm::Sever => proxy.sever(),
        Harm::Silence => {
            proxy.blackhole(Direction::ToServer);
            proxy.blackhole(Direction::ToClient);
        }
        _ => proxy.blackhole(Direction::ToClient),
    }
}
