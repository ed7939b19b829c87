//! Apache Curator, in a Java process that runs whole turns by itself.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock::status::Mode;
use test_servers::{CuratorCycleTurn, CuratorHandOffTurn, CuratorPeer, CuratorShareTurn};

use super::connection::ZooKeeperUrl;
use crate::contender::{Connecting, Program, Target};
use crate::failure::{Context, Outcome};
use crate::plan::{CyclePlan, HandOffTurn};
use crate::samples::Samples;
use crate::workload::{Cycles, HandOffs, Scenario, Shares};

pub(super) const WAITING: &str =
    "in line behind the contender before it, and lists them all again when that one goes";

/// Enough for the Java virtual machine to compile the code that runs often.
const CYCLES_BEFORE_ALL: usize = 1000;

pub(super) fn start(target: Target) -> Connecting<Arc<dyn Program>> {
    Box::pin(async move {
        let servers = ZooKeeperUrl::of(&target)?.servers;
        let peer = CuratorPeer::start(servers, target.lease).await.context("Curator")?;
        let curator = Curator { peer, target };
        let warm_up = CyclePlan {
            turns_per_round: 1,
            warm_up: CYCLES_BEFORE_ALL,
            most: 0,
            turn: Duration::ZERO,
            echo_turn: Duration::ZERO,
        };
        curator.cycles("bench-cycle-curator", &warm_up).await?;
        Ok(Arc::new(curator) as Arc<dyn Program>)
    })
}

struct Curator {
    peer: CuratorPeer,
    target: Target,
}

#[async_trait]
impl Program for Curator {
    async fn cycles(&self, name: &str, plan: &CyclePlan) -> Outcome<Cycles> {
        let path = ZooKeeperUrl::of(&self.target)?.of_lock(name);
        let turn = CuratorCycleTurn { warm_up: plan.warm_up, length: plan.turn, most: plan.most };
        let told = self.peer.cycles(&path, &turn).await.context("Curator")?;
        let cycle = told.acquire.iter().zip(&told.release).map(|(acquire, release)| *acquire + *release);
        Ok(Cycles {
            cycle: cycle.collect(),
            acquire: told.acquire.into_iter().collect(),
            release: told.release.into_iter().collect(),
            processor: told.processor,
        })
    }

    async fn hand_offs(&self, name: &str, turn: &HandOffTurn) -> Outcome<HandOffs> {
        let path = ZooKeeperUrl::of(&self.target)?.of_lock(name);
        let HandOffTurn { clients, warm_up, length, hold, think } = *turn;
        let turn = CuratorHandOffTurn { clients, warm_up, length, hold, think };
        let told = self.peer.hand_offs(&path, &turn).await.context("Curator")?;
        let mut grants = told.grants;
        grants.sort_unstable();
        Ok(HandOffs {
            times: told.times.into_iter().collect::<Samples>(),
            sections: grants.iter().sum(),
            grants,
            all_sections: told.all_sections,
            same_again: told.same_again,
            longest_wait: told.longest_wait,
            length: told.length,
            processor: told.processor,
        })
    }

    async fn shares(&self, name: &str, scenario: &Scenario, turn: &HandOffTurn) -> Outcome<Shares> {
        let path = ZooKeeperUrl::of(&self.target)?.of_lock(name);
        let modes = scenario.modes();
        let kinds: Vec<_> = modes.iter().map(|mode| kind(*mode, modes.len())).collect();
        let kinds: Vec<_> = kinds.iter().map(String::as_str).collect();
        let HandOffTurn { clients, warm_up, length, hold, think: _ } = *turn;
        let turn =
            CuratorShareTurn { clients, kinds: &kinds, writes: scenario.writes(), warm_up, length, hold };
        let told = self.peer.shares(&path, &turn).await.context("Curator")?;
        let waits = told.waits.into_iter().collect();
        Ok(Shares { waits, grants: told.grants, length: told.length })
    }
}

/// The class for a mode, as the Java program calls it: beside readers a writer, alone the mutex.
fn kind(mode: Mode, modes: usize) -> String {
    match mode {
        Mode::Shared => "read".to_owned(),
        Mode::Permits { of, .. } => of.to_string(),
        _ if modes > 1 => "write".to_owned(),
        _ => "mutex".to_owned(),
    }
}
