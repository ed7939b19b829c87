//! Three ZooKeeper servers that are one.

use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use super::network::{Network, PeerPorts};
use super::{Membership, PORTS_TRIED, Role, ZooKeeperOptions, ZooKeeperServer, is_port_taken, options};
use crate::failure::{Failure, Outcome};
use crate::servers::Certificates;

const MEMBERS: usize = 3;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long an election may take. Generous: it costs time only when something is wrong.
const ELECTED_WITHIN: Duration = Duration::from_secs(60);

/// Three ZooKeeper servers that are one, with their files in temporary folders, and a network between them that can be parted.
/// Ended when this is dropped.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    /// Before everything that they use, so that they end first.
    members: Vec<ZooKeeperServer>,
    network: Network,
    _certificates: Option<TempDir>,
}

impl ZooKeeperEnsemble {
    /// Starts one that lets everybody do anything, and waits until all members serve clients.
    ///
    /// # Errors
    /// When it does not come up: with the end of a log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the servers.
    pub async fn start() -> Outcome<Self> {
        Self::start_with(ZooKeeperOptions::new()).await
    }

    /// Starts one in which all members are as the options say, and waits until they serve clients. A port in the options is
    /// that of the first one; the others have those that follow.
    ///
    /// # Errors
    /// When it does not come up: with the end of a log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the servers.
    pub async fn start_with(options: ZooKeeperOptions) -> Outcome<Self> {
        let first = options.port;
        let of_member = |member: u16| match first {
            Some(port) => options.clone().port(port.saturating_add(member)),
            None => options.clone(),
        };
        Self::start_each([of_member(0), of_member(1), of_member(2)]).await
    }

    /// Starts one with different members, and waits until they serve clients. They have to agree on whether they speak TLS.
    ///
    /// # Errors
    /// When it does not come up: with the end of a log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends the servers.
    pub async fn start_each(options: [ZooKeeperOptions; MEMBERS]) -> Outcome<Self> {
        let mut tried = 1;
        loop {
            match Self::start_once(&options).await {
                Err(failure) if tried < PORTS_TRIED && is_port_taken(&failure) => tried += 1,
                outcome => return outcome,
            }
        }
    }

    async fn start_once(options: &[ZooKeeperOptions; MEMBERS]) -> Outcome<Self> {
        let ports = (0..MEMBERS).map(|_| PeerPorts::free()).collect::<Outcome<Vec<_>>>()?;
        let network = Network::start(&ports)?;
        let (folder, certificates) = certificates_for(options)?;
        let lines: Vec<_> = ports.iter().enumerate().map(|(member, ports)| line(member, *ports)).collect();
        let mut members = Vec::new();
        for (member, options) in options.iter().enumerate() {
            let membership = Membership {
                number: Some(member + 1),
                configuration: lines.concat(),
                properties: [quick_elections(), network.properties(member)].concat(),
                certificates: certificates.clone(),
            };
            members.push(ZooKeeperServer::launch(options, &membership)?);
        }
        for member in &members {
            member.ready().await?;
        }
        Ok(Self { members, network, _certificates: folder })
    }

    /// All members. What is done to one of them by itself is done here: kill it, stop it, start it again.
    pub fn members(&self) -> &[ZooKeeperServer] {
        &self.members
    }

    /// The member with this index, counted from 0.
    ///
    /// # Panics
    /// When there is none.
    pub fn member(&self, index: usize) -> &ZooKeeperServer {
        &self.members[index]
    }

    /// Where clients find the members.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(ZooKeeperServer::address).collect()
    }

    /// How a client finds all members, and everything that it needs to be let in.
    pub fn url(&self) -> String {
        self.url_of("/locks", &[])
    }

    /// The same with the locks below `path` and with more options. [`ZooKeeperServer::url_of`] is for some of the members, or
    /// for proxies.
    pub fn url_of(&self, path: &str, options: &[(&str, &str)]) -> String {
        self.members[0].url_of(&self.addresses(), path, options)
    }

    /// Waits until one of the members leads, and answers with its index. One that has been parted from the others may say so
    /// for a while when they have another already.
    ///
    /// # Errors
    /// When there is no leader for a long time.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, and nothing else.
    pub async fn leader(&self) -> Outcome<usize> {
        self.leader_among(&[0, 1, 2]).await
    }

    /// Waits until one of these members leads, and answers with its index.
    ///
    /// # Errors
    /// When there is no leader for a long time.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, and nothing else.
    pub async fn leader_among(&self, members: &[usize]) -> Outcome<usize> {
        let deadline = Instant::now() + ELECTED_WITHIN;
        loop {
            for &member in members {
                // One that stands still does not answer, and does not keep the others from being asked.
                let role = tokio::time::timeout(LOOK_EVERY * 10, self.members[member].role()).await;
                if matches!(role, Ok(Ok(Role::Leader))) {
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

    /// The members that are not `member`.
    pub fn others(&self, member: usize) -> Vec<usize> {
        (0..self.members.len()).filter(|other| *other != member).collect()
    }

    /// Passes nothing on between two members until [`ZooKeeperEnsemble::heal`]: each finds out by its own clock that it has not
    /// heard of the other.
    pub fn part(&self, one: usize, other: usize) {
        self.network.blackhole(one, other);
    }

    /// Ends the connections between two members, and refuses new ones until [`ZooKeeperEnsemble::heal`]: both know at once.
    pub fn sever(&self, one: usize, other: usize) {
        self.network.sever(one, other);
    }

    /// Parts a member from all others. Its clients go on talking to it.
    pub fn isolate(&self, member: usize) {
        for other in self.others(member) {
            self.part(member, other);
        }
    }

    /// Has all members reach each other again. What was on its way arrives, as it does in a network.
    pub fn heal(&self) {
        self.network.heal();
    }
}

/// One authority for all members, where they speak TLS.
fn certificates_for(
    options: &[ZooKeeperOptions; MEMBERS],
) -> Outcome<(Option<TempDir>, Option<Certificates>)> {
    if options.iter().all(|options| options.encryption == options::Encryption::None) {
        return Ok((None, None));
    }
    let folder = tempfile::Builder::new().prefix("distlock-zookeeper-").tempdir()?;
    let certificates = Certificates::make_in(folder.path())?;
    Ok((Some(folder), Some(certificates)))
}

fn line(member: usize, PeerPorts { quorum, election }: PeerPorts) -> String {
    format!("server.{}=127.0.0.1:{quorum}:{election}\n", member + 1)
}

/// Whoever looks for a leader and finds nobody asks again soon.
fn quick_elections() -> Vec<String> {
    ["minNotificationInterval=100", "maxNotificationInterval=1000"]
        .map(|setting| format!("-Dzookeeper.fastleader.{setting}"))
        .to_vec()
}
