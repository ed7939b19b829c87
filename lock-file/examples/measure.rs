//! Measures the file backend: `cargo run --release -p lock-file --example measure -- FOLDER`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use lock_core::{ClientBuilder, DistributedLock, LockClient, LockError};
use lock_file::FileOptions;

const CYCLES: usize = 20_000;
const HAND_OVERS: usize = 500;
const QUEUE: usize = 100;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments.first().map_or("/dev/shm/distlock-measure", String::as_str);
    let locks = FileOptions::in_folder(folder).client(ClientBuilder::new())?;
    if arguments.get(1).is_some_and(|role| role == "answer") {
        return answer(&locks).await;
    }
    println!("in {folder}");
    cycles(&locks).await?;
    hand_overs(&locks, folder).await?;
    waiting(&locks, folder).await?;
    Ok(locks.close(Duration::from_secs(5)).await?)
}

/// Acquires and releases locks that no other process wants.
async fn cycles(locks: &LockClient) -> Result<(), LockError> {
    cycles_of(&*locks.mutex("cycles")?, "acquire and release").await?;
    cycles_of(&*locks.rw_lock("cycles")?.read(), "the same of a reader").await?;
    cycles_of(&*locks.semaphore("cycles", 4)?.permits(1)?, "the same of a permit").await
}

async fn cycles_of(lock: &dyn DistributedLock, what: &str) -> Result<(), LockError> {
    let mut times = Vec::with_capacity(CYCLES);
    for _ in 0..CYCLES {
        let begun = Instant::now();
        lock.acquire().await?.release().await?;
        times.push(begun.elapsed());
    }
    report(what, times);
    Ok(())
}

/// Measures from the call of release here until the acquisition has returned in another process.
async fn hand_overs(locks: &LockClient, folder: &str) -> Outcome {
    let (lock, mut other) = (locks.mutex("hand-over")?, Other::start(folder)?);
    let mut times = Vec::with_capacity(HAND_OVERS);
    for _ in 0..HAND_OVERS {
        let guard = lock.acquire().await?;
        other.say("acquire hand-over")?;
        while locks.status("hand-over").await?.waiters.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let released_at = nanoseconds();
        guard.release().await?;
        let granted_at: u64 = other.hear()?.parse()?;
        times.push(Duration::from_nanos(granted_at.saturating_sub(released_at)));
    }
    report("hand-over to another process", times);
    other.end()
}

/// Measures the processor time of many waiting processes.
async fn waiting(locks: &LockClient, folder: &str) -> Outcome {
    let guard = locks.mutex("waiting")?.acquire().await?;
    let mut others = (0..QUEUE).map(|_| Other::start(folder)).collect::<Result<Vec<_>, _>>()?;
    for other in &mut others {
        other.say("acquire waiting")?;
    }
    while locks.status("waiting").await?.waiters.len() < QUEUE {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let pause = Duration::from_secs(10);
    let start = ticks(&others)?;
    tokio::time::sleep(pause).await;
    println!(
        "{QUEUE} waiting processes: {} ms of processor time in {pause:?}",
        (ticks(&others)? - start) * 10
    );
    let start = Instant::now();
    guard.release().await?;
    for other in &others {
        drop(other.hear());
    }
    println!("all {QUEUE} served, one after the other, after {:?}", start.elapsed());
    others.into_iter().try_for_each(Other::end)
}

/// The other process: acquires when told to, reports when it had the lock, and releases it.
async fn answer(locks: &LockClient) -> Outcome {
    for line in std::io::stdin().lines() {
        let line = line?;
        let name = line.strip_prefix("acquire ").ok_or("acquire NAME")?;
        let guard = locks.mutex(name)?.acquire().await?;
        let at = nanoseconds();
        guard.release().await?;
        println!("{at}");
    }
    Ok(())
}

struct Other {
    child: Child,
    output: std::cell::RefCell<BufReader<std::process::ChildStdout>>,
}

impl Other {
    fn start(folder: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child =
            command.args([folder, "answer"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?).into();
        Ok(Self { child, output })
    }

    fn say(&mut self, line: &str) -> Outcome {
        Ok(writeln!(self.child.stdin.as_mut().ok_or("no input")?, "{line}")?)
    }

    fn hear(&self) -> Result<String, Box<dyn std::error::Error>> {
        let mut line = String::new();
        self.output.borrow_mut().read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn end(mut self) -> Outcome {
        drop(self.child.stdin.take());
        self.child.wait()?;
        Ok(())
    }
}

fn ticks(others: &[Other]) -> Result<u64, Box<dyn std::error::Error>> {
    let mut total = 0;
    for other in others {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", other.child.id()))?;
        let (_, numbers) = stat.rsplit_once(") ").ok_or("no state")?;
        for number in numbers.split(' ').skip(11).take(2) {
            total += number.parse::<u64>()?;
        }
    }
    Ok(total)
}

fn nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let (median, tail) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("{what}: median {median:?}, 99 % within {tail:?}, over {} times", times.len());
}
