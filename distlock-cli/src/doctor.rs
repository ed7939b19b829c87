//! `distlock doctor`: connects as a program would, tries on a lock of its own what programs need, and says what would fail later.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use distlock::capabilities::{Failover, Inspection, Reach};
use distlock::status::{HolderInfo, LockStatus};
use distlock::{ErrorKind, LockClient, LockError};
use humantime::format_duration;
use serde_json::json;
use tokio::task::JoinSet;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

use crate::arguments::Common;
use crate::connection::{self, Address};
use crate::exit::{self, Ending, Failure};
use crate::participants::whole_seconds;
use crate::report::{Report, write_output};

/// How often the server is asked for a sign of life.
const ROUND_TRIPS: u32 = 20;
/// How many of the slowest of them a lease should have room for.
const ROOM: u32 = 20;
/// How many clients try at once to have one lock, and how often.
const RIVALS: usize = 6;
const RACES: u32 = 3;
/// How long a lock that no other client uses may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a list may take, and a holder until it learns of a break.
const SOON: Duration = Duration::from_secs(10);

/// How far two clocks that are synchronised may be apart.
const CLOCKS_DIFFER: Duration = Duration::from_secs(2);

/// What a check found out, if what it tried works at all.
enum Finding {
    Fine(String),
    /// Something may surprise later.
    Warning(String),
}

use Finding::{Fine, Warning};

/// The findings so far, which are printed as they come.
struct Findings<'a> {
    common: &'a Common,
    has_warnings: bool,
    fault: Option<u8>,
    /// What the library has warned of.
    told: HashSet<String>,
}

/// Carries out the checks. The exit code is that of the first fault; 1 if there are only warnings.
pub(crate) async fn run(common: &Common, report: &Report) -> Result<Ending, Failure> {
    let address = Address::find(common)?;
    let warnings = Arc::new(Said::default());
    let heard = tracing_subscriber::fmt::layer().with_writer(Arc::clone(&warnings)).with_ansi(false);
    let heard = heard.with_level(false).with_target(false).without_time();
    tracing_subscriber::registry()
        .with((common.verbose > 1).then(|| report.log()))
        .with(heard.with_filter(LevelFilter::WARN))
        .init();
    let mut findings = Findings { common, has_warnings: false, fault: None, told: HashSet::new() };
    let begun = Instant::now();
    match address.open(Duration::ZERO).await {
        Err(mut failure) => {
            // A port that refuses connections has no server behind it that could want TLS; and some backends say it themselves.
            let is_explained = ["refused", "TLS"].iter().any(|part| failure.message.contains(part));
            if failure.code == exit::UNREACHABLE && !is_explained {
                failure.message += "; if the server runs: both sides have to use TLS, or neither";
            }
            findings.add("connect", Err(failure))?;
        }
        Ok(locks) => {
            let (server, took) =
                (address.shown().unwrap_or_else(|| "file:".to_owned()), shown(begun.elapsed()));
            findings.add("connect", Ok::<_, Failure>(Fine(format!("connected to {server} in {took}"))))?;
            findings.examine(&locks, &address, &warnings).await?;
            connection::close(&locks).await;
            // A break loses its own lock, and on some servers its connection.
            let is_its_own =
                |line: &str| line.starts_with("lost ") || line.contains("a connection has ended");
            findings.hear(&warnings, |line| !is_its_own(line))?;
        }
    }
    let code = findings.fault.unwrap_or(if findings.has_warnings { exit::WARNINGS } else { exit::SUCCESS });
    Ok(Ending::Code(code))
}

impl Findings<'_> {
    fn add(&mut self, check: &str, found: Result<Finding, impl Into<Failure>>) -> Result<(), Failure> {
        let (level, text) = match found.map_err(Into::into) {
            Ok(Fine(text)) => ("fine", text),
            Ok(Warning(text)) => {
                self.has_warnings = true;
                ("warning", text)
            }
            Err(Failure { code, message }) => {
                self.fault.get_or_insert(code);
                ("fault", message)
            }
        };
        if self.common.json {
            let finding = json!({ "event": "finding", "check": check, "level": level, "message": text });
            return write_output(&format!("{finding}\n"));
        }
        if self.common.quiet && level == "fine" {
            return Ok(());
        }
        write_output(&format!("{level:<8} {check:<10} {text}\n"))
    }

    /// What the library has warned of since the last look, each once.
    fn hear(&mut self, warnings: &Said, counts: impl Fn(&str) -> bool) -> Result<(), Failure> {
        for line in warnings.lines() {
            if counts(&line) && self.told.insert(line.clone()) {
                self.add("server", Ok::<_, Failure>(Warning(line)))?;
            }
        }
        Ok(())
    }

    async fn examine(
        &mut self,
        locks: &LockClient,
        address: &Address,
        warnings: &Said,
    ) -> Result<(), Failure> {
        let name = name();
        self.add("round trip", round_trips(locks, address.lease()?).await)?;
        // Two at once would find each other's locks held. Of any other failure, the checks say more.
        let alone = locks.mutex(format!("{name}/run"))?.acquire_for(PATIENCE).await;
        if alone.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy) {
            let text = "another doctor runs on this machine: try again when it has ended";
            return self.add("lock", Ok::<_, Failure>(Warning(text.to_owned())));
        }
        self.add("lock", lock(locks, &name).await)?;
        self.add("status", status(locks, &name).await)?;
        self.add("list", list(locks, &name).await)?;
        self.add("sharing", sharing(locks, &name).await)?;
        self.add("slots", slots(locks, &name).await)?;
        self.add("election", election(locks, &name).await)?;
        if locks.capabilities().reach == Reach::Network {
            let survival = survival(locks.capabilities().failover).to_owned();
            self.add("failover", Ok::<_, Failure>(Fine(survival)))?;
            self.add("exclusion", exclusion(address).await)?;
        }
        self.hear(warnings, |_| true)?;
        // It may end a connection of this client, so it comes last.
        self.add("break", break_own(locks, &name).await)
    }
}

/// A lock of this machine: some servers keep something of each lock for good.
fn name() -> String {
    let HolderInfo { host, .. } = HolderInfo::of_this_process();
    format!("distlock-doctor/{}", host.chars().take(64).collect::<String>())
}

fn shown(duration: Duration) -> String {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    format_duration(Duration::from_micros(micros)).to_string()
}

/// What the library logs as a warning.
#[derive(Default)]
struct Said(Mutex<Vec<u8>>);

impl Said {
    fn lines(&self) -> Vec<String> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&log).lines().map(|line| line.trim().to_owned()).collect()
    }
}

impl io::Write for &Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn round_trips(locks: &LockClient, lease: Option<Duration>) -> Result<Finding, LockError> {
    let mut slowest = Duration::ZERO;
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        locks.ping().await?;
        slowest = slowest.max(begun.elapsed());
    }
    Ok(rated(slowest, lease.filter(|_| locks.capabilities().reach == Reach::Network)))
}

fn rated(slowest: Duration, lease: Option<Duration>) -> Finding {
    let text = format!("the slowest of {ROUND_TRIPS} took {}", shown(slowest));
    let Some(lease) = lease else { return Fine(text) };
    let lease_text = format!("a lease is {}", crate::status::shown(lease));
    if slowest * ROOM > lease {
        let remedy =
            "it may end before a renewal is answered: ask for a longer one, or find out what is slow";
        return Warning(format!("{text}; {lease_text}, and {remedy}"));
    }
    Fine(format!("{text}; {lease_text}"))
}

async fn lock(locks: &LockClient, name: &str) -> Result<Finding, LockError> {
    let lock = locks.mutex(name)?;
    let begun = Instant::now();
    let first = lock.acquire_for(PATIENCE).await?;
    let token = first.token();
    first.release().await?;
    let took = shown(begun.elapsed());
    let second = lock.acquire_for(PATIENCE).await?;
    let next = second.token();
    second.release().await?;
    Ok(match (token, next) {
        (Some(token), Some(next)) if token < next => {
            Fine(format!("acquired and released in {took}; tokens rise ({token}, {next})"))
        }
        (Some(token), Some(next)) => Warning(format!(
            "the token {next} came after {token}: do not rely on tokens, and look at the server's clock"
        )),
        _ => Warning(format!(
            "acquired and released in {took}, and no fencing token came with it: late writes are not refused (ask for tokens in the URL, if the backend has them)"
        )),
    })
}

/// A server that checks and writes in two steps grants a lock to several clients that ask at the same time.
async fn exclusion(address: &Address) -> Result<Finding, Failure> {
    let (name, mut rivals) = (name(), Vec::new());
    for _ in 0..RIVALS {
        rivals.push(address.open(Duration::ZERO).await?);
    }
    let mut most = 0;
    for _ in 0..RACES {
        let mut trying = JoinSet::new();
        for locks in &rivals {
            let lock = locks.mutex(&name)?;
            trying.spawn(async move { lock.try_acquire().await });
        }
        let mut holders = Vec::new();
        while let Some(tried) = trying.join_next().await {
            let tried = tried.map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
            holders.extend(tried?);
        }
        most = most.max(holders.len());
        for holder in holders {
            // Of several, all but one have lost it.
            let _ = holder.release().await;
        }
    }
    for locks in rivals {
        connection::close(&locks).await;
    }
    together(most)
}

/// `most` is how many of the rivals had the lock at once.
fn together(most: usize) -> Result<Finding, Failure> {
    match most {
        0 => Ok(Warning(format!("of {RIVALS} clients that tried at once none had the lock, which was free"))),
        1 => Ok(Fine(format!("of {RIVALS} clients that tried at once one had the lock"))),
        _ => Err(Failure::new(
            exit::INTERNAL,
            format!("{most} of {RIVALS} clients had the lock at once: do not keep locks on this server"),
        )),
    }
}

async fn status(locks: &LockClient, name: &str) -> Result<Finding, LockError> {
    let begun = SystemTime::now();
    let guard = locks.mutex(name)?.acquire_for(PATIENCE).await?;
    let granted = SystemTime::now();
    let status = locks.status(name).await;
    guard.release().await?;
    let status = status?;
    let since = status.holders.first().and_then(|holder| holder.since);
    if let Some(apart) = since.and_then(|since| apart(since, begun, granted)) {
        return Ok(Warning(format!(
            "the server's clock is {apart} this machine's, so one of them is not synchronised: when the server's is set, leases may end \
             early or late"
        )));
    }
    let is_ours = |pid| pid == Some(std::process::id());
    Ok(match status.holders.as_slice() {
        [holder] if is_ours(holder.pid) => Fine("the holder is shown, with host and process".to_owned()),
        [_] => Warning("a holder is shown without its process: find it by its connection".to_owned()),
        _ => {
            Warning("the holder is not shown: the login may lack a right, see the backend's page".to_owned())
        }
    })
}

/// How far the server's time of a grant is from the time that it took here, if that is too far.
fn apart(since: SystemTime, begun: SystemTime, granted: SystemTime) -> Option<String> {
    let behind = begun.duration_since(since).unwrap_or_default();
    let ahead = since.duration_since(granted).unwrap_or_default();
    let (length, word) = if behind > ahead { (behind, "behind") } else { (ahead, "ahead of") };
    (length > CLOCKS_DIFFER).then(|| format!("{} {word}", format_duration(whole_seconds(length))))
}

/// What other programs have among these locks: their entries do not say which process it is.
fn of_others(locks: &[LockStatus]) -> String {
    let theirs = |lock: &&LockStatus| lock.holders.iter().chain(&lock.waiters).any(|one| one.pid.is_none());
    let Some(first) = locks.iter().find(theirs) else { return String::new() };
    format!(
        "; {} of all locks, first {:?}, are also used by other programs or users: see the backend's page for what they exclude, and \
         that some do not hear of a break",
        locks.iter().filter(theirs).count(),
        first.name.as_str()
    )
}

async fn list(locks: &LockClient, name: &str) -> Result<Finding, LockError> {
    let guard = locks.mutex(name)?.acquire_for(PATIENCE).await?;
    let listed = tokio::time::timeout(SOON, locks.list()).await;
    guard.release().await?;
    let Ok(listed) = listed else {
        let text = "takes longer than it may here: ask for it rarely, and with a long --interval";
        return Ok(Warning(format!("a list of all locks {text}")));
    };
    let found = match listed {
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Denied) => {
            return Ok(Warning(format!("list, watch and top do not work: {error}")));
        }
        found => found?,
    };
    let others = match locks.capabilities().inspection {
        Inspection::None | Inspection::Sessions => String::new(),
        _ => of_others(&found.locks),
    };
    Ok(match (found.failures.first(), found.locks.iter().any(|lock| lock.name.as_str() == name)) {
        (Some(error), _) => Warning(error.to_string()),
        (None, true) => Fine(format!("its own lock is listed{others}")),
        (None, false) => Warning("its own lock is not listed: do not rely on list, watch and top".to_owned()),
    })
}

async fn sharing(locks: &LockClient, name: &str) -> Result<Finding, LockError> {
    for lock in [locks.rw_lock(name)?.read(), locks.semaphore(name, 2)?.permits(1)?] {
        let (first, second) = (lock.acquire_for(PATIENCE).await?, lock.acquire_for(PATIENCE).await?);
        first.release().await?;
        second.release().await?;
    }
    Ok(Fine("two readers, and two holders of permits, were beside each other".to_owned()))
}

/// What a server without replicas does not do is no warning; a backend that sees some warns itself.
const fn survival(failover: Failover) -> &'static str {
    match failover {
        Failover::KeepsHolds => "another server that takes over keeps the locks",
        Failover::LosesHolds => {
            "when another server takes over, holders learn of a loss before others get their locks"
        }
        _ => {
            "if another server ever takes over, it may grant locks that are held: have late writes refused by their \
             tokens, or choose a backend whose locks outlive a server"
        }
    }
}

async fn slots(locks: &LockClient, name: &str) -> Result<Finding, LockError> {
    if !locks.capabilities().remembering {
        return Ok(Warning("nothing is remembered here: --once and --at-least end with 64".to_owned()));
    }
    let slot = std::process::id().to_string();
    let once = locks.once(name, &slot)?.keep(PATIENCE);
    match once.acquire_for(PATIENCE).await? {
        Some(guard) => guard.release().await?,
        None => return Ok(Warning("a slot of this process was used before it asked".to_owned())),
    }
    locks.forget(name, &slot).await?;
    Ok(Fine("a slot was taken: --once and --at-least work".to_owned()))
}

async fn election(locks: &LockClient, name: &str) -> Result<Finding, LockError> {
    let value = if locks.capabilities().describing { "doctor" } else { "" };
    let election = locks.election(name)?;
    let leadership = election.campaign_for(value, PATIENCE).await?;
    let seen = election.observe().await.map(|watch| watch.leader().and_then(|leader| leader.value));
    leadership.resign().await?;
    Ok(match seen?.as_deref() {
        Some("doctor") => Fine("a leader is seen, with its value".to_owned()),
        _ => Warning("a leader can show no value: --value of elect ends with 64".to_owned()),
    })
}

async fn break_own(locks: &LockClient, name: &str) -> Result<Finding, LockError> {
    let guard = locks.mutex(name)?.acquire_for(PATIENCE).await?;
    let mut is_taken = false;
    for holder in locks.status(name).await?.holders {
        is_taken |= locks.break_holder(name, &holder.id).await?.taken_away;
    }
    if !is_taken {
        guard.release().await?;
        return Ok(Warning("the lock of a holder could not be taken away: do not rely on break".to_owned()));
    }
    let told = tokio::time::timeout(SOON, guard.lost()).await;
    drop(guard);
    Ok(match told {
        Ok(Some(reason)) => Fine(format!("a lock was taken from its holder, which heard: {reason}")),
        _ => Warning(format!(
            "a lock was taken from its holder, which had not heard of it after {}: it learns at the next check of its session",
            format_duration(SOON)
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_needs_room_for_twenty_of_the_slowest_round_trips() {
        let rated = |millis, lease| rated(Duration::from_millis(millis), lease);
        let lease = Some(Duration::from_secs(2));
        assert!(matches!(rated(100, lease), Fine(text) if text.contains("a lease is 2s")));
        assert!(matches!(rated(101, lease), Warning(text) if text.contains("a longer one")));
        assert!(matches!(rated(3_600_000, None), Fine(_)));
    }

    #[test]
    fn one_of_several_clients_has_a_lock() {
        assert!(matches!(together(0), Ok(Warning(text)) if text.contains("none had the lock")));
        assert!(matches!(together(1), Ok(Fine(_))));
        assert!(matches!(together(2), Err(failure) if failure.message.contains("2 of 6 clients")));
    }

    #[test]
    fn clocks_may_differ_by_two_seconds_beside_the_time_that_a_grant_takes() {
        let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        let apart = |since| apart(at(since), at(10_000), at(15_000));
        for since in [8_000, 10_000, 12_000, 15_000, 17_000] {
            assert_eq!(apart(since), None, "{since}");
        }
        assert_eq!(apart(7_999).as_deref(), Some("2s behind"));
        assert_eq!(apart(77_001).as_deref(), Some("1m 2s ahead of"));
    }
}
