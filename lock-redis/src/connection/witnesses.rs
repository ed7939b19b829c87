//! Asks the sentinels, or the nodes of a cluster that the options name, which servers are primaries.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{BackendContext, ErrorKind, LockError, Moment, Operation, Password};
use lock_kit::{Endpoint, TlsOptions, unreachable};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ProtocolVersion};
use tokio::sync::{Mutex, mpsc};

use super::address::{Login, client};
use crate::failure::{explain, nonsense};
use crate::options::{RedisOptions, SentinelOptions};

/// The servers that say which others are primaries: a client believes what more than half of them say.
pub(super) struct Witnesses {
    context: BackendContext,
    /// The primary's name at the sentinels; `None` for nodes of a cluster.
    name: Option<String>,
    user: Option<String>,
    password: Option<Password>,
    tls: Option<TlsOptions>,
    all: Vec<Arc<Witness>>,
    /// Is locked while they are asked, so that one answer serves all connections.
    asked: Mutex<Moment>,
    said: lock_core::spi::Mutex<Arc<Vec<Primary>>>,
}

/// Ranges of hash slots. Without a cluster, there is one.
pub(super) type Slots = Vec<RangeInclusive<u16>>;

/// A server, and the failover that has made it the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Primary {
    pub(super) address: Endpoint,
    /// Each failover has a higher one: it also tells a primary that becomes one again without having been demoted in between.
    pub(super) epoch: u64,
    pub(super) slots: Slots,
}

impl Primary {
    /// The only one.
    pub(super) fn only(address: Endpoint, epoch: u64) -> Self {
        Self { address, epoch, slots: vec![0..=0] }
    }

    pub(super) fn has(&self, slot: u16) -> bool {
        contains(&self.slots, slot)
    }
}

struct Witness {
    endpoint: Endpoint,
    /// The connection on which it answered last.
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Witnesses {
    /// Those that the options name.
    pub(super) fn of(options: &RedisOptions, context: &BackendContext) -> Option<Arc<Self>> {
        let server = &options.server;
        let (endpoints, name, user, password) = match &options.sentinels {
            Some(SentinelOptions { endpoints, primary, user, password }) => {
                (endpoints, Some(primary.clone()), user, password)
            }
            None if options.is_cluster() => (&options.cluster, None, &server.user, &server.password),
            None => return None,
        };
        let new = |endpoint: &Endpoint| Witness { endpoint: endpoint.clone(), connection: Mutex::default() };
        Some(Arc::new(Self {
            context: context.clone(),
            name,
            user: user.clone(),
            password: password.clone(),
            tls: server.tls.clone(),
            all: endpoints.iter().map(new).map(Arc::new).collect(),
            asked: Mutex::new(Moment::from_nanoseconds(0)),
            said: lock_core::spi::Mutex::default(),
        }))
    }

    /// What they said last.
    pub(super) fn said(&self) -> Arc<Vec<Primary>> {
        Arc::clone(&self.said.lock())
    }

    /// Returns when a majority was asked, not before `since`, and the primary that it named then for the slot.
    pub(super) async fn primary(
        self: &Arc<Self>,
        limit: Duration,
        slot: u16,
        since: Moment,
    ) -> Result<(Moment, Primary), LockError> {
        let (asked, said) = self.primaries(limit, since).await?;
        let owner = said.iter().find(|primary| primary.has(slot)).ok_or_else(|| without_owner(slot))?;
        Ok((asked, owner.clone()))
    }

    /// Returns when a majority was asked, not before `since`, and all primaries that it named then. Each may take `limit` for its
    /// answer.
    pub(super) async fn primaries(
        self: &Arc<Self>,
        limit: Duration,
        since: Moment,
    ) -> Result<(Moment, Arc<Vec<Primary>>), LockError> {
        let mut asked = self.asked.lock().await;
        if *asked < since || asked.as_nanoseconds() == 0 {
            let now = self.context.clock().now();
            let said = self.ask_all(limit).await?;
            *self.said.lock() = Arc::new(said);
            *asked = now;
        }
        Ok((*asked, self.said()))
    }

    /// Returns as soon as more than half of them have answered, and agree on all that they have said.
    async fn ask_all(self: &Arc<Self>, limit: Duration) -> Result<Vec<Primary>, LockError> {
        let (tell, mut told) = mpsc::unbounded_channel();
        for witness in &self.all {
            let (this, witness, tell) = (Arc::clone(self), Arc::clone(witness), tell.clone());
            self.context.spawn(async move {
                // An error means that a majority was found without this one.
                let _ = tell.send(this.ask(&witness, limit).await);
            });
        }
        drop(tell);
        let all = self.all.len();
        let (mut answers, mut failures, mut said) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(answer) = told.recv().await {
            match answer {
                Ok(named) => answers.push(named),
                Err(failure) => failures.push(failure),
            }
            said = agreed(&answers, all);
            if is_majority(answers.len(), all) && answers.iter().flatten().all(|named| said.contains(named)) {
                break;
            }
        }
        let unknowing = answers.iter().filter(|named| named.is_empty()).count();
        match said.is_empty() {
            false => Ok(said),
            true if is_majority(unknowing, all) => Err(self.unknown()),
            true => Err(self.no_majority(&answers, &failures)),
        }
    }

    /// Whether they are nodes of a cluster.
    pub(super) fn are_nodes(&self) -> bool {
        self.name.is_none()
    }

    /// Asks one of them.
    async fn ask(&self, witness: &Witness, limit: Duration) -> Result<Vec<Primary>, LockError> {
        let endpoint = &witness.endpoint;
        let failed = |error| explain(Operation::Connect, error);
        let asking = async {
            let mut kept = witness.connection.lock().await;
            // A connection that does not answer is not used again.
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => self.open(endpoint, limit).await?,
            };
            let named = if let Some(name) = &self.name {
                named_by_sentinel(name, &mut connection).await?
            } else {
                let text: String = cluster_nodes().query_async(&mut connection).await.map_err(failed)?;
                text.lines().filter_map(|line| primary_in(line, endpoint)).collect()
            };
            *kept = Some(connection);
            Ok(named)
        };
        let clock = self.context.clock();
        let answer = within(clock, clock.now().plus(limit), asking).await;
        let answer = answer.unwrap_or_else(|| Err(failed(io::Error::from(io::ErrorKind::TimedOut).into())));
        answer.map_err(|error: LockError| {
            let (what, remedy) = match &self.name {
                Some(_) => ("sentinel", "check the sentinels, and sentinel_user and sentinel_password_file"),
                None => ("node", "check the nodes of the cluster that the URL names"),
            };
            let shown = LockError::new(error.kind(), Operation::Connect)
                .because(format!("the {what} {endpoint}: {error}"))
                .remedy(remedy);
            if error.is_retryable() { shown.retryable() } else { shown }
        })
    }

    async fn open(&self, endpoint: &Endpoint, limit: Duration) -> Result<MultiplexedConnection, LockError> {
        let password = lock_kit::read_password(&self.context, self.password.as_ref(), limit).await?;
        let (tls, user) = (self.tls.as_ref(), self.user.as_deref());
        let login = Login { endpoint, tls, user, password: password.as_ref(), database: 0 };
        // The caller limits both.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let client = client(&login, ProtocolVersion::RESP2)?;
        let opened = client.get_multiplexed_async_connection_with_config(&config).await;
        opened.map_err(|error| explain(Operation::Connect, error))
    }

    fn unknown(&self) -> LockError {
        let new = |cause| LockError::new(ErrorKind::InvalidOption, Operation::Connect).because(cause);
        match &self.name {
            Some(name) => new(format!("the sentinels know no primary with the name {name:?}"))
                .remedy("use the name that follows `sentinel monitor` in their configuration"),
            None => new("the nodes of the cluster name no primary that has hash slots".to_owned())
                .remedy("give each hash slot to a node"),
        }
    }

    fn no_majority(&self, answers: &[Vec<Primary>], failures: &[LockError]) -> LockError {
        let all = self.all.len();
        // What does not pass by itself says more than silence.
        if let Some(lasting) = failures.iter().find(|failure| !failure.is_retryable()) {
            return lasting.clone();
        }
        let mut told: Vec<_> = failures.iter().map(ToString::to_string).collect();
        told.extend(answers.iter().map(|named| match named.as_slice() {
            [Primary { address, epoch, .. }] => format!("one names {address}, in epoch {epoch}"),
            [] => "one knows no such primary".to_owned(),
            several => format!("one names {}", several.len()),
        }));
        let (what, told) = (if self.name.is_some() { "sentinels" } else { "nodes" }, told.join("; "));
        unreachable(Operation::Connect, format!("no majority of the {all} {what} names one primary ({told})"))
            .remedy(format!("check that most of the {what} run, can be reached, and agree"))
    }
}

fn is_majority(count: usize, all: usize) -> bool {
    count * 2 > all
}

/// What a majority of all witnesses has said: each primary with the hash slots that a majority gives it.
fn agreed(answers: &[Vec<Primary>], all: usize) -> Vec<Primary> {
    let mut agreed: Vec<Primary> = Vec::new();
    for primary in answers.iter().flatten() {
        let is_same = |one: &&Primary| (&one.address, one.epoch) == (&primary.address, primary.epoch);
        if agreed.iter().any(|one| is_same(&one)) {
            continue;
        }
        // Each witness has one vote.
        let votes: Vec<_> = answers.iter().flatten().filter(is_same).collect();
        let has_most = |slot| is_majority(votes.iter().filter(|vote| vote.has(slot)).count(), all);
        let slots = those(votes.iter().flat_map(|vote| &vote.slots), has_most);
        if !slots.is_empty() {
            agreed.push(Primary { slots, ..primary.clone() });
        }
    }
    agreed
}

/// The first hash slot that none of these has.
pub(super) fn gap(primaries: &[Primary]) -> Option<u16> {
    let (all, named) = (0..=16_383, primaries.iter().flat_map(|primary| &primary.slots));
    let is_unnamed = |slot| all.contains(&slot) && !primaries.iter().any(|primary| primary.has(slot));
    Some(*those(named.chain([&all]), is_unnamed).first()?.start())
}

/// The error for a hash slot of which no majority names an owner.
pub(super) fn without_owner(slot: u16) -> LockError {
    let cause = format!("no majority of the nodes names an owner of the hash slot {slot}");
    unreachable(Operation::Connect, cause).remedy("check the state of the cluster")
}

/// How a sentinel begins its answer about a primary that it does not know.
const UNKNOWN: &str = "No such master";

async fn named_by_sentinel(
    name: &str,
    connection: &mut MultiplexedConnection,
) -> Result<Vec<Primary>, LockError> {
    let facts: HashMap<String, String> =
        match redis::cmd("SENTINEL").arg("MASTER").arg(name).query_async(connection).await {
            Ok(facts) => facts,
            Err(error) if error.detail().is_some_and(|text| text.starts_with(UNKNOWN)) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(explain(Operation::Connect, error)),
        };
    let number = |name: &str| facts.get(name)?.parse::<u64>().ok();
    let read = || {
        let port = number("port")?.try_into().ok()?;
        let address = Endpoint::Tcp { host: facts.get("ip")?.clone(), port };
        Some(vec![Primary::only(address, number("config-epoch")?)])
    };
    read().ok_or_else(|| nonsense(Operation::Connect, "a sentinel does not say where the primary is"))
}

pub(super) fn cluster_nodes() -> Cmd {
    redis::cmd("CLUSTER").arg("NODES").take()
}

/// What a node says of itself, if it is a primary. It has no slot that is on its way to another one.
pub(super) fn itself(nodes: &str, address: &Endpoint) -> Option<Primary> {
    let line = nodes.lines().find(|line| line.contains(" myself,"))?;
    let leaving = line.split_whitespace().filter_map(|word| word.strip_prefix('[')?.split_once("->-"));
    let leaving: Vec<_> =
        leaving.filter_map(|(slot, _)| slot.parse().ok()).map(|slot: u16| slot..=slot).collect();
    let mut primary = primary_in(line, address)?;
    primary.slots =
        those(primary.slots.iter().chain(&leaving), |slot| primary.has(slot) && !contains(&leaving, slot));
    Some(primary)
}

/// Reads a line of the answer of the node `asked`: "id host:port@bus,name flags primary sent received epoch link slots…". A node may
/// not know its own host.
fn primary_in(line: &str, asked: &Endpoint) -> Option<Primary> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [_, place, flags, _, _, _, epoch, _, slots @ ..] = words.as_slice() else { return None };
    flags.split(',').find(|flag| *flag == "master")?;
    let (place, rest) = place.split_once('@')?;
    let (host, port) = place.rsplit_once(':')?;
    let name = rest.split(',').nth(1).filter(|name| !name.is_empty() && !name.contains('='));
    let host = match (name.unwrap_or(host), asked) {
        ("", Endpoint::Tcp { host, .. }) => host.clone(),
        (host, _) => host.to_owned(),
    };
    let range = |word: &&str| -> Option<RangeInclusive<u16>> {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    // A slot that is on its way is in brackets, beside those that the node has.
    let slots: Slots = slots.iter().filter_map(range).collect();
    let address = Endpoint::Tcp { host, port: port.parse().ok()? };
    Some(Primary { address, epoch: epoch.parse().ok()?, slots }).filter(|primary| !primary.slots.is_empty())
}

/// Those slots in these ranges that meet the condition, in as few ranges as there can be. What is true of one slot is true of all up
/// to the next at which a range begins, or has ended.
pub(super) fn those<'a>(
    ranges: impl IntoIterator<Item = &'a RangeInclusive<u16>>,
    condition: impl Fn(u16) -> bool,
) -> Slots {
    let bounds = ranges.into_iter().flat_map(|range| [*range.start(), range.end().saturating_add(1)]);
    let bounds: BTreeSet<_> = bounds.collect();
    let mut those = Slots::new();
    for (first, next) in bounds.iter().zip(bounds.iter().skip(1)).filter(|(first, _)| condition(**first)) {
        match those.last_mut() {
            Some(last) if *last.end() == first - 1 => *last = *last.start()..=next - 1,
            _ => those.push(*first..=next - 1),
        }
    }
    those
}

/// The slots that are in both.
pub(super) fn common(some: &[RangeInclusive<u16>], others: &[RangeInclusive<u16>]) -> Slots {
    those(some.iter().chain(others), |slot| contains(some, slot) && contains(others, slot))
}

fn contains(slots: &[RangeInclusive<u16>], slot: u16) -> bool {
    slots.iter().any(|range| range.contains(&slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_tells_the_primaries_and_their_slots() {
        let asked = Endpoint::Tcp { host: "n1".to_owned(), port: 7000 };
        let text = "a1 :7000@17000 myself,master - 0 0 3 connected 0-3299 3301-8191 [3300->-b2]\n\
                    b2 10.0.0.2:7001@17001,b.example,shard-id=9 master,fail - 0 0 2 connected 3300 9000-16383\n\
                    c3 10.0.0.3:7002@17002 slave b2 0 0 2 connected\n\
                    d4 10.0.0.4:7003@17003 master - 0 0 0 connected\n\
                    e5 :0@0 master,noaddr - 0 0 0 disconnected\n";
        let read: Vec<_> = text.lines().filter_map(|line| primary_in(line, &asked)).collect();
        let at = |host: &str, port| Endpoint::Tcp { host: host.to_owned(), port };
        let first = Primary { address: asked.clone(), epoch: 3, slots: vec![0..=3299, 3301..=8191] };
        let second =
            Primary { address: at("b.example", 7001), epoch: 2, slots: vec![3300..=3300, 9000..=16383] };
        assert_eq!(read, [first.clone(), second]);
        assert_eq!(itself(text, &asked), Some(first));
    }

    #[test]
    fn a_slot_that_leaves_a_node_is_no_longer_its_own() {
        let asked = Endpoint::Tcp { host: "n1".to_owned(), port: 7000 };
        let slots_beside = |leaving: &str| {
            let line = format!("a1 :7000@17000 myself,master - 0 0 3 connected 0-9 20 {leaving}");
            itself(&line, &asked).unwrap().slots
        };
        assert_eq!(slots_beside(""), [0..=9, 20..=20]);
        assert_eq!(slots_beside("[4->-b2]"), [0..=3, 5..=9, 20..=20]);
        assert_eq!(slots_beside("[0->-b2] [20->-b2]"), [1..=9]);
        assert_eq!(slots_beside("[30-<-b2] [x->-b2]"), [0..=9, 20..=20]);
    }

    #[test]
    fn a_primary_has_the_slots_that_a_majority_gives_it() {
        let node = |host: &str| Endpoint::Tcp { host: host.to_owned(), port: 7000 };
        let address = node("n1");
        let says = |epoch, slots| vec![Primary { address: address.clone(), epoch, slots }];
        let agreed = |answers: &[Vec<Primary>]| {
            let agreed = agreed(answers, 3);
            agreed.into_iter().map(|primary| (primary.epoch, primary.slots)).collect::<Vec<_>>()
        };
        let whole = says(3, vec![0..=9]);
        // One that lags takes no slot away, and gives none.
        let lags = says(3, vec![0..=4, 6..=12]);
        assert_eq!(agreed(&[lags.clone(), whole.clone()]), [(3, vec![0..=4, 6..=9])]);
        assert_eq!(agreed(&[lags, whole.clone(), whole.clone()]), [(3, vec![0..=9])]);
        assert_eq!(agreed(&[whole.clone(), says(2, vec![0..=9]), Vec::new()]), []);
        let strange = says(3, vec![65_535..=65_535]);
        assert_eq!(agreed(&[strange.clone(), strange]), []);
    }

    #[test]
    fn a_hash_slot_without_a_primary_is_a_gap() {
        let gap = |of_each: &[Slots]| {
            let has = |slots: &Slots| Primary {
                slots: slots.clone(),
                ..Primary::only(Endpoint::Tcp { host: "n1".to_owned(), port: 7000 }, 1)
            };
            gap(&of_each.iter().map(has).collect::<Vec<_>>())
        };
        assert_eq!(gap(&[vec![0..=9, 20..=16_383], vec![10..=19]]), None);
        assert_eq!(gap(&[vec![0..=9, 20..=16_383], vec![10..=18]]), Some(19));
        assert_eq!(gap(&[vec![1..=16_383]]), Some(0));
        assert_eq!(gap(&[vec![0..=16_382]]), Some(16_383));
        assert_eq!(gap(&[]), Some(0));
    }

    #[test]
    fn common_slots_are_in_both() {
        assert_eq!(common(&[0..=9, 20..=29], &[5..=22, 29..=40]), [5..=9, 20..=22, 29..=29]);
        assert_eq!(common(&[0..=9], &[10..=19]), Slots::new());
    }
}
