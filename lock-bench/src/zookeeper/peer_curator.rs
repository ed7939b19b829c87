//! Apache Curator, in a Java process that runs whole turns by itself.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use test_servers::{CuratorCycleTurn, CuratorHandOffTurn, CuratorPeer};

use super::connection::Place;
use crate::contender::{Connecting, Program, Target};
use crate::failure::{Context, Outcome};
use crate::plan::{CyclePlan, HandOffTurn};
use crate::samples::Samples;
use crate::workload::{Cycles, HandOffs};

pub(super) const WAITING: &str =
    "in line behind the contender before it, and lists them all again when that one goes";

/// Enough for the Java virtual machine to compile the code that runs often.
const CYCLES_BEFORE_ALL: usize = 1000;

pub(super) fn start(target: Target) -> Connecting<Arc<dyn Program>> {
    Box::pin(async move {
        let servers = Place::of(&target)?.servers;
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
        let path = Place::of(&self.target)?.of_lock(name);
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
        let path = Place::of(&self.target)?.of_lock(name);
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
}
