//! An ensemble of three ZooKeeper servers.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::network::Network;
use super::{ZooKeeper, ZooKeeperServer};
use crate::ports::on_free_ports;
use crate::{Direction, Failure, Outcome, ServerOptions, TcpProxy, free_port};

const MEMBERS: usize = 3;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long an election may take. The value is generous: it costs time only when something is wrong.
const ELECTED_WITHIN: Duration = Duration::from_mins(1);

/// An ensemble of three ZooKeeper servers, with their files in temporary folders, and a network between them that can
/// be partitioned. Dropping this ends them.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    /// Declared before everything that they use, so that they are dropped first.
    members: Vec<ZooKeeperServer>,
    network: Network,
}

impl ZooKeeperEnsemble {
    /// Starts an ensemble that allows every client everything, and waits until all members serve clients.
    ///
    /// # Errors
    /// When it does not start: the end of a log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the servers.
    pub async fn start() -> Outcome<Self> {
        Self::start_each(Default::default()).await
    }

    /// Starts an ensemble of different members, and waits until they serve clients. Either all of them speak TLS or
    /// none.
    ///
    /// # Errors
    /// When it does not start: the end of a log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the servers.
    pub async fn start_each(options: [ServerOptions; MEMBERS]) -> Outcome<Self> {
        on_free_ports(None, || Self::start_once(&options)).await
    }

    async fn start_once(options: &[ServerOptions; MEMBERS]) -> Outcome<Self> {
        let ports = (0..MEMBERS).map(|_| Ok([free_port()?, free_port()?])).collect::<Outcome<Vec<_>>>()?;
        let network = Network::start(&ports)?;
        let mut members: Vec<ZooKeeperServer> = Vec::new();
        for (member, options) in options.iter().enumerate() {
            // One that looks for a leader and finds none asks again soon.
            let mut options = network
                .through_exit(member, options.clone())
                .property("zookeeper.fastleader.minNotificationInterval", "100")
                .property("zookeeper.fastleader.maxNotificationInterval", "1000");
            for (at, [quorum, election]) in ports.iter().enumerate() {
                let address = format!("127.0.0.1:{quorum}:{election}");
                options = options.setting(&format!("server.{}", at + 1), &address);
            }
            members.push(ZooKeeperServer::launch(options, ZooKeeper::new(Some(member + 1))?)?);
        }
        for member in &members {
            member.ready().await?;
        }
        Ok(Self { members, network })
    }

    /// Returns all members. Use these to kill, stop or restart one of them.
    pub fn members(&self) -> &[ZooKeeperServer] {
        &self.members
    }

    /// Returns the member with this index, counted from 0.
    ///
    /// # Panics
    /// When there is none.
    pub fn member(&self, index: usize) -> &ZooKeeperServer {
        &self.members[index]
    }

    /// Returns the addresses of the members for clients.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(ZooKeeperServer::address).collect()
    }

    /// Returns the URL of all members, including everything that a client needs to log in.
    pub fn url(&self) -> String {
        self.url_of("/locks", &[])
    }

    /// Returns the same URL with the locks below `path` and with more options. [`ZooKeeperServer::url_of`] is for some
    /// of the members, or for proxies.
    pub fn url_of(&self, path: &str, options: &[(&str, &str)]) -> String {
        self.members[0].url_of(&self.addresses(), path, options)
    }

    /// Waits until one of the members leads, and returns its index. A member that has been separated from the others
    /// may claim to lead for a while when they already have another leader.
    ///
    /// # Errors
    /// When there is no leader for a long time.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn leader(&self) -> Outcome<usize> {
        self.leader_among(&[0, 1, 2]).await
    }

    /// Waits until one of these members leads, and returns its index.
    ///
    /// # Errors
    /// When there is no leader for a long time.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn leader_among(&self, members: &[usize]) -> Outcome<usize> {
        let deadline = Instant::now() + ELECTED_WITHIN;
        loop {
            for &member in members {
                // A suspended member does not answer; it must not keep this from asking the others.
                let role = tokio::time::timeout(LOOK_EVERY * 10, self.members[member].role()).await;
                if role.is_ok_and(|role| role.is_ok_and(|role| role == "leader")) {
                    return Ok(member);
                }
            }
            if Instant::now() > deadline {
                let text = format!("none of {members:?} has come to lead within {ELECTED_WITHIN:?}");
                return Err(Failure::new(text));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Returns the indexes of all members except `member`.
    pub fn others(&self, member: usize) -> Vec<usize> {
        (0..self.members.len()).filter(|other| *other != member).collect()
    }

    /// Ends the connections between two members, and refuses new ones until [`ZooKeeperEnsemble::heal`]: both notice
    /// immediately.
    pub fn sever(&self, one: usize, other: usize) {
        self.network.of_both(one, other).for_each(TcpProxy::sever);
    }

    /// Forwards nothing between two members until [`ZooKeeperEnsemble::heal`]: each notices by its own clock that the
    /// other is silent.
    pub fn part(&self, one: usize, other: usize) {
        for proxy in self.network.of_both(one, other) {
            proxy.blackhole(Direction::ToServer);
            proxy.blackhole(Direction::ToClient);
        }
    }

    /// Separates a member from all others. Its clients can still reach it.
    pub fn isolate(&self, member: usize) {
        for other in self.others(member) {
            self.part(member, other);
        }
    }

    /// Connects all members again. Data that was on its way arrives, as it does in a network.
    pub fn heal(&self) {
        self.network.between.iter().for_each(|(_, proxy)| proxy.heal());
    }
}
