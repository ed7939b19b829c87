//! What the users of two clients do, and what they may expect.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    ClientBuilder, Clock, DistributedLock, EngineChoice, ErrorKind, FencingToken, Hold, HoldEnd, LockClient,
    LockError, LockGuard, LossReason, ManualClock, Mode, Moment, Owner, Wait,
};

use super::backend::Remote;
use super::digest::Digest;
use super::network::{LEASE, LEASE_TOKENS, Network, Order, Step};
use crate::support::ByHand;

const CLIENTS: usize = 2;
const USERS: usize = 5;
/// Of a semaphore.
const PERMITS: u32 = 2;
const A_WHILE: Duration = Duration::from_secs(4);

/// What users ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Mode(Mode),
    Permits(u32),
}

#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) order: Order,
    /// How many holds of a client may follow each other on one lease.
    pub(crate) sections: u32,
    /// Whether requests get lost, holds are broken and leases end.
    pub(crate) has_faults: bool,
    pub(crate) limits: Limits,
}

/// How often something happens at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) asks: usize,
    pub(crate) leaves: usize,
    pub(crate) harms: usize,
    pub(crate) waits: usize,
}

impl Limits {
    pub(crate) const NONE: Self =
        Self { asks: usize::MAX, leaves: usize::MAX, harms: usize::MAX, waits: usize::MAX };
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Asking = ByHand<Boxed<Result<Option<LockGuard>, LockError>>>;

struct User {
    client: usize,
    owner: Owner,
    does: Does,
    /// The holds that it has, the first of them first.
    has: Vec<Has>,
}

enum Does {
    Nothing,
    Asks(Box<Ask>),
    Releases(Box<Release>),
}

struct Release {
    future: ByHand<Boxed<Result<(), LockError>>>,
    token: u64,
    /// When the lease ends by the client's clock, if nothing renews it.
    until: Option<Moment>,
}

struct Ask {
    future: Asking,
    mode: Mode,
    wait: Wait,
    at: usize,
    /// Whether nothing else has been there since it began to ask: neither at the server, nor on its way, nor another user.
    is_alone: bool,
}

struct Has {
    guard: LockGuard,
    mode: Mode,
    lost: ByHand<Boxed<Option<LossReason>>>,
}

pub(crate) struct Walk {
    network: Arc<Network>,
    time: ManualClock,
    clock: Clock,
    clients: Vec<LockClient>,
    users: Vec<User>,
    rules: Rules,
    begun: Moment,
    left: Limits,
    step: usize,
    log: Vec<String>,
    last_token: u64,
    /// Holds, whether they have been invalid, and how they have ended.
    seen: Vec<(Hold, bool, Option<HoldEnd>)>,
}

/// For how long a user asks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    None,
    Some,
    Endless,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    Ask(usize, Kind, Patience),
    ReadToo(usize),
    WriteToo(usize),
    Poll(usize),
    Leave(usize),
    Release(usize),
    Drop(usize),
    Network(Step),
    Wait(Duration),
    ToTheNextAlarm,
}

fn boxed<T>(future: impl Future<Output = T> + Send + 'static) -> Boxed<T> {
    Box::pin(future)
}

pub(crate) type Checked = Result<(), String>;

impl Walk {
    pub(crate) fn new(rules: &Rules) -> Self {
        let (clock, time) = Clock::manual();
        time.advance(Duration::from_secs(100));
        let begun = clock.now();
        let network = Network::new(clock.clone(), rules.order);
        let client = |number| {
            let builder = ClientBuilder::new().clock(clock.clone()).engine(EngineChoice::Caller);
            let builder = match rules.sections {
                1 => builder,
                sections => builder.local_handoff(sections, A_WHILE),
            };
            builder.build(|context| Ok(Remote::new(number, &network, context))).unwrap()
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        let user = |number| User {
            client: usize::from(number >= 3),
            owner: Owner::new(),
            does: Does::Nothing,
            has: Vec::new(),
        };
        Self {
            network,
            time,
            clock,
            clients,
            users: (0..USERS).map(user).collect(),
            rules: rules.clone(),
            begun,
            left: rules.limits,
            step: 0,
            log: Vec::new(),
            last_token: 0,
            seen: Vec::new(),
        }
    }

    pub(crate) fn describe(&self) -> String {
        format!("{}\n{}", self.log.join("\n"), self.network.describe())
    }

    /// Returns what can happen next, by kind, and how often a walk takes each kind.
    pub(crate) fn actions(&self) -> Vec<(usize, Vec<Action>)> {
        let users = |wanted: &dyn Fn(&User) -> bool| {
            let numbers = self.users.iter().enumerate().filter(|(_, user)| wanted(user));
            numbers.map(|(number, _)| number).collect::<Vec<_>>()
        };
        let each = |numbers: &[usize], action: fn(usize) -> Action| -> Vec<Action> {
            numbers.iter().copied().map(action).collect()
        };
        let is_idle = |user: &User| matches!(user.does, Does::Nothing) && user.has.is_empty();
        // Those of one client are alike.
        let idle = (0..CLIENTS)
            .filter_map(|client| users(&|user| user.client == client && is_idle(user)).first().copied());
        let patience = [Patience::None, Patience::Some, Patience::Endless];
        let kinds = self.rules.kinds.iter().flat_map(|kind| patience.map(|patience| (*kind, patience)));
        let asks = idle.flat_map(|user| kinds.clone().map(move |(kind, wait)| Action::Ask(user, kind, wait)));
        let holding = users(&|user| matches!(user.does, Does::Nothing) && !user.has.is_empty());
        let shares = self.shares();
        let alone = |mode| {
            let has_one = move |user: &User| user.has.len() == 1 && user.has[0].mode == mode;
            users(&|user| shares && matches!(user.does, Does::Nothing) && has_one(user))
        };
        let (writing, mut reading) = (alone(Mode::Exclusive), alone(Mode::Shared));
        reading.retain(|number| self.users[*number].has[0].guard.hold().is_valid());
        let asking = users(&|user| matches!(user.does, Does::Asks(_)));
        let steps = self.network.steps().into_iter().map(Action::Network).collect();
        let harms = self.network.harms().into_iter().map(Action::Network).collect();
        // Without faults no lease ends before the network works again.
        let has_faults = self.rules.has_faults;
        let may_wait = has_faults || self.clock.now() < self.begun.plus(LEASE / 2);
        let waits = vec![Action::Wait(Duration::from_secs(1)), Action::ToTheNextAlarm];
        let left = self.left;
        let kinds = [
            (12, true, each(&self.woken(), Action::Poll)),
            (36, true, steps),
            (12, left.asks > 0, asks.collect()),
            (12, true, each(&holding, Action::Release)),
            (12, left.asks > 0, each(&writing, Action::ReadToo)),
            (3, left.leaves > 0, each(&asking, Action::Leave)),
            (3, left.leaves > 0, each(&holding, Action::Drop)),
            (3, left.asks > 0, each(&reading, Action::WriteToo)),
            (3, has_faults && left.harms > 0, harms),
            (4, may_wait && left.waits > 0, waits),
            (1, has_faults && left.harms > 0, vec![Action::Wait(LEASE)]),
        ];
        let possible = kinds.into_iter().filter(|(_, may, actions)| *may && !actions.is_empty());
        possible.map(|(often, _, actions)| (often, actions)).collect()
    }

    /// Writes down what can make a difference from here on.
    pub(crate) fn digest(&self) -> u64 {
        let mut digest = Digest::at(self.clock.now());
        for user in &self.users {
            for Has { guard, lost, .. } in &user.has {
                digest.token(token(guard));
                digest.add((guard.hold().end(), lost.is_woken()));
                digest.add(guard.hold().remaining().map(|left| left.as_millis() / 100));
            }
            match &user.does {
                Does::Nothing => digest.add("nothing"),
                Does::Asks(ask) => {
                    let before =
                        |other: &&User| matches!(&other.does, Does::Asks(other) if other.at < ask.at);
                    digest.add((ask.mode, self.users.iter().filter(before).count(), ask.future.is_woken()));
                    digest.add((matches!(ask.wait, Wait::Try), ask.is_alone));
                    if let Wait::Until(end) = ask.wait {
                        digest.moment(end);
                    }
                }
                Does::Releases(release) => {
                    digest.token(release.token);
                    digest.add(release.future.is_woken());
                    digest.moment(release.until.unwrap_or(Moment::FOREVER));
                }
            }
        }
        self.network.digest(&mut digest);
        digest.moment(self.time.next_alarm().unwrap_or(Moment::FOREVER));
        digest.add((self.left, self.clock.now() < self.begun.plus(LEASE / 2)));
        digest.number()
    }

    fn woken(&self) -> Vec<usize> {
        let is_woken = |user: &User| match &user.does {
            Does::Nothing => false,
            Does::Asks(ask) => ask.future.is_woken(),
            Does::Releases(release) => release.future.is_woken(),
        };
        let users = self.users.iter().enumerate().filter(|(_, user)| is_woken(user));
        users.map(|(number, _)| number).collect()
    }

    pub(crate) async fn act(&mut self, action: Action) -> Checked {
        self.step += 1;
        let now = self.clock.now().as_nanoseconds() / 1_000_000;
        self.log.push(format!("{:3} at {now} ms: {action:?}", self.step));
        self.count(action);
        match action {
            Action::Ask(number, kind, patience) => self.ask(number, kind, patience)?,
            Action::ReadToo(number) => self.begin(number, Mode::Shared, Wait::Forever)?,
            Action::WriteToo(number) => self.write_too(number)?,
            Action::Poll(number) => self.poll(number)?,
            Action::Leave(number) => self.users[number].does = Does::Nothing,
            Action::Release(number) => self.release(number)?,
            Action::Drop(number) => drop(self.give_back(number)),
            Action::Network(step) => self.network.carry_out(step),
            Action::Wait(duration) => self.time.advance(duration),
            Action::ToTheNextAlarm => match self.time.next_alarm() {
                Some(next) => self.time.advance_to(next),
                None => self.time.advance(A_WHILE),
            },
        }
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        self.check()
    }

    fn count(&mut self, action: Action) {
        let left = &mut self.left;
        let limit = match action {
            Action::Ask(..) | Action::ReadToo(_) | Action::WriteToo(_) => &mut left.asks,
            Action::Leave(_) | Action::Drop(_) => &mut left.leaves,
            Action::Network(Step::Fail(_) | Step::GiveUp(_) | Step::Break | Step::EndSession(_)) => {
                &mut left.harms
            }
            Action::Wait(duration) if duration == LEASE => &mut left.harms,
            Action::Wait(_) | Action::ToTheNextAlarm => &mut left.waits,
            Action::Poll(_) | Action::Release(_) | Action::Network(_) => return,
        };
        *limit = limit.saturating_sub(1);
    }

    fn shares(&self) -> bool {
        self.rules.kinds.iter().any(|kind| matches!(kind, Kind::Mode(Mode::Shared)))
    }

    fn lock(&self, client: usize, mode: Mode) -> Arc<dyn DistributedLock> {
        let (client, shares) = (&self.clients[client], self.shares());
        match mode {
            Mode::Shared => client.rw_lock("x").unwrap().read(),
            Mode::Permits { take, .. } => {
                client.semaphore("x", PERMITS).unwrap().permits(take.get()).unwrap()
            }
            Mode::Exclusive if shares => client.rw_lock("x").unwrap().write(),
            _ => client.mutex("x").unwrap(),
        }
    }

    fn ask(&mut self, number: usize, kind: Kind, patience: Patience) -> Checked {
        let mode = match kind {
            Kind::Mode(mode) => mode,
            Kind::Permits(take) => {
                let semaphore = self.clients[0].semaphore("x", PERMITS).unwrap();
                semaphore.permits(take).unwrap().mode()
            }
        };
        let wait = match patience {
            Patience::None => Wait::Try,
            Patience::Some => Wait::Until(self.clock.now().plus(A_WHILE)),
            Patience::Endless => Wait::Forever,
        };
        self.users[number].owner = Owner::new();
        self.begin(number, mode, wait)
    }

    fn begin(&mut self, number: usize, mode: Mode, wait: Wait) -> Checked {
        let user = &self.users[number];
        let (lock, owner) = (self.lock(user.client, mode), user.owner);
        self.note(format!("user {number} of client {} asks for {mode:?}, {wait:?}", user.client));
        let future = ByHand::of(boxed(async move { lock.acquire_as(owner, wait).await }));
        let is_alone = self.network.is_empty() && self.others_are_idle(number);
        let ask = Ask { future, mode, wait, at: self.step, is_alone };
        self.users[number].does = Does::Asks(Box::new(ask));
        self.poll(number)
    }

    fn others_are_idle(&self, number: usize) -> bool {
        let is_idle = |(other, user): (usize, &User)| {
            other == number || matches!(user.does, Does::Nothing) && user.has.is_empty()
        };
        self.users.iter().enumerate().all(is_idle)
    }

    fn note(&mut self, text: impl std::fmt::Display) {
        self.log.push(format!("      {text}"));
    }

    fn give_back(&mut self, number: usize) -> LockGuard {
        let Has { guard, .. } = self.users[number].has.remove(0);
        // A lease that may be handed on is not given back with its hold.
        let may_be_handed_on = token(&guard) % LEASE_TOKENS + 1 < u64::from(self.rules.sections);
        if guard.hold().is_valid() && !may_be_handed_on {
            self.network.gives_back(token(&guard));
        }
        guard
    }

    fn release(&mut self, number: usize) -> Checked {
        let left = self.users[number].has[0].guard.hold().remaining();
        let until = left.filter(|left| !left.is_zero()).map(|left| self.clock.now().plus(left));
        let guard = self.give_back(number);
        let token = token(&guard);
        let future = ByHand::of(boxed(guard.release()));
        self.users[number].does = Does::Releases(Box::new(Release { future, token, until }));
        self.poll(number)
    }

    /// A lease that stood when its user gave it back is not lost, whatever happens to the requests.
    fn released(&self, release: &Release, outcome: &Result<(), LockError>) -> Checked {
        let Err(error) = outcome else { return Ok(()) };
        let may_be_lost = release.until.is_none_or(|until| until <= self.clock.now())
            || self.network.has_broken(release.token);
        if error.kind() == ErrorKind::Lost && !may_be_lost {
            return Err(format!("the release of token {} says that it was lost: {error}", release.token));
        }
        Ok(())
    }

    /// No reader waits for itself.
    fn write_too(&mut self, number: usize) -> Checked {
        self.begin(number, Mode::Exclusive, Wait::Forever)?;
        match self.users[number].does {
            Does::Nothing if self.users[number].has.len() == 1 => Ok(()),
            _ => Err(format!("user {number} reads and may ask for the write side")),
        }
    }

    fn poll(&mut self, number: usize) -> Checked {
        match std::mem::replace(&mut self.users[number].does, Does::Nothing) {
            Does::Nothing => Ok(()),
            Does::Asks(mut ask) => match ask.future.poll() {
                None => {
                    self.users[number].does = Does::Asks(ask);
                    Ok(())
                }
                Some(outcome) => self.settled(number, &ask, outcome),
            },
            Does::Releases(mut release) => match release.future.poll() {
                None => {
                    self.users[number].does = Does::Releases(release);
                    Ok(())
                }
                Some(outcome) => self.released(&release, &outcome),
            },
        }
    }

    fn settled(
        &mut self,
        number: usize,
        ask: &Ask,
        outcome: Result<Option<LockGuard>, LockError>,
    ) -> Checked {
        self.note(match &outcome {
            Ok(Some(guard)) => format!("user {number} has {:?}", guard.token()),
            Ok(None) => format!("user {number}: busy"),
            Err(error) => format!("user {number}: {error}"),
        });
        match (outcome, ask.wait) {
            (Ok(Some(guard)), _) => self.granted(number, ask, guard),
            (Err(_), _) if !self.users[number].has.is_empty() => Ok(()),
            (_, Wait::Forever) => {
                Err(format!("the endless wait of user {number} has ended without the lock"))
            }
            (Ok(None), _) if ask.is_alone => Err(format!("user {number} is alone, and is refused")),
            (Ok(None), Wait::Until(end)) if self.clock.now() < end => {
                Err(format!("the wait of user {number} has ended before its time"))
            }
            (Err(error), Wait::Until(end)) if self.clock.now() < end => {
                Err(format!("the wait of user {number} has failed before its time: {error}"))
            }
            (Err(error), Wait::Until(_)) if error.kind() != ErrorKind::Unreachable => {
                Err(format!("the wait of user {number} has failed: {error}"))
            }
            _ => Ok(()),
        }
    }

    fn granted(&mut self, number: usize, ask: &Ask, guard: LockGuard) -> Checked {
        self.check_order(number, ask)?;
        let token = token(&guard);
        if token % LEASE_TOKENS >= u64::from(self.rules.sections) {
            return Err(format!("token {token} is not one of its lease"));
        }
        let is_reentry = !self.users[number].has.is_empty();
        if ask.mode == Mode::Exclusive && token <= self.last_token && !self.network.has_broken(token) {
            return Err(format!("token {token} after {}", self.last_token));
        }
        if !is_reentry {
            self.last_token = self.last_token.max(token);
        }
        self.seen.push((guard.hold().clone(), false, None));
        let mut lost = ByHand::of(boxed(guard.lost()));
        if lost.poll().is_none() {
            self.users[number].has.push(Has { guard, mode: ask.mode, lost });
        }
        Ok(())
    }

    /// Users of one client have what they exclude from each other in the order in which they asked for it. Faults cost places.
    fn check_order(&self, number: usize, ask: &Ask) -> Checked {
        if self.rules.has_faults || !self.users[number].has.is_empty() {
            return Ok(());
        }
        for (other, user) in self.users.iter().enumerate() {
            let Does::Asks(earlier) = &user.does else { continue };
            let is_before = other != number
                && user.client == self.users[number].client
                && user.has.is_empty()
                && earlier.at < ask.at
                && earlier.wait == Wait::Forever;
            if is_before && exclude(earlier.mode, ask.mode) {
                return Err(format!("user {number} has overtaken user {other}"));
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Checked {
        if let Some(violation) = self.network.violations().first() {
            return Err(violation.clone());
        }
        for (hold, was_invalid, end) in &mut self.seen {
            let is_valid = hold.is_valid();
            if is_valid && *was_invalid || end.is_some() && *end != hold.end() {
                return Err(format!("{hold:?} has ended, and ends again"));
            }
            *was_invalid |= !is_valid;
            *end = hold.end();
        }
        for number in 0..USERS {
            let is_alone = self.others_are_idle(number);
            if let Does::Asks(ask) = &mut self.users[number].does {
                ask.is_alone &= is_alone;
            }
        }
        self.check_losses()?;
        self.check_tries()?;
        self.check_believers()
    }

    /// A hold that is not valid any more has ended, and those who wait for that are woken.
    fn check_losses(&self) -> Checked {
        for (number, user) in self.users.iter().enumerate() {
            let over = user.has.iter().find(|has| !has.guard.hold().is_valid());
            if let Some(has) = over.filter(|has| has.guard.hold().end().is_none() || !has.lost.is_woken()) {
                return Err(format!("user {number} does not hear of the end of {:?}", has.guard.hold()));
            }
        }
        Ok(())
    }

    /// A try does not wait until another user of its client gives back the lock.
    fn check_tries(&self) -> Checked {
        for (number, user) in self.users.iter().enumerate() {
            let Does::Asks(ask) = &user.does else { continue };
            let holds = |other: &User| {
                let writes = |has: &Has| has.mode == Mode::Exclusive && has.guard.hold().is_valid();
                other.client == user.client && other.has.iter().any(writes)
            };
            if (ask.mode, ask.wait) == (Mode::Exclusive, Wait::Try)
                && !ask.future.is_woken()
                && self.users.iter().any(holds)
            {
                return Err(format!("user {number} tries, and waits behind a user of its client"));
            }
        }
        Ok(())
    }

    fn check_believers(&self) -> Checked {
        let mut believers = Vec::new();
        for (number, user) in self.users.iter().enumerate() {
            // A user that reads under its write lock believes one thing.
            let valid = user.has.iter().find(|has| has.guard.hold().is_valid());
            let knows = |token| !self.network.has_broken(token) || self.network.has_reported(token);
            if let Some(has) = valid.filter(|has| knows(token(&has.guard))) {
                believers.push((number, has.mode));
            }
        }
        let taken: u32 = believers.iter().map(|(_, mode)| weight(*mode)).sum();
        let writes = believers.iter().any(|(_, mode)| *mode == Mode::Exclusive);
        let has_permits = believers.iter().any(|(_, mode)| matches!(mode, Mode::Permits { .. }));
        if writes && believers.len() > 1 || has_permits && taken > PERMITS {
            return Err(format!("these believe that they have the lock: {believers:?}"));
        }
        Ok(())
    }

    /// Without faults, all waits end, and nothing is left.
    pub(crate) async fn end(&mut self) -> Checked {
        self.note("no more faults");
        for _ in 0..2_000 {
            let holding =
                self.users.iter().position(|user| matches!(user.does, Does::Nothing) && !user.has.is_empty());
            let action = if let Some(number) = self.woken().first() {
                Action::Poll(*number)
            } else if let Some(number) = holding {
                Action::Release(number)
            } else if let Some(step) = self.network.steps().first() {
                Action::Network(*step)
            } else if self.is_over() {
                return Ok(());
            } else {
                Action::ToTheNextAlarm
            };
            self.act(action).await?;
        }
        Err("without faults, not all waits end".to_owned())
    }

    /// A user of the first client asks, and has what it asks for.
    pub(crate) async fn begin_held(&mut self) -> Checked {
        self.act(Action::Ask(0, self.rules.kinds[0], Patience::Endless)).await?;
        while self.users[0].has.is_empty() {
            let next = self.network.steps().first().map_or(Action::Poll(0), |step| Action::Network(*step));
            self.act(next).await?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let is_idle = |client: &LockClient| ByHand::of(client.idle()).poll().is_some();
        self.users.iter().all(|user| matches!(user.does, Does::Nothing))
            && self.network.is_empty()
            && self.clients.iter().all(is_idle)
    }
}

fn token(guard: &LockGuard) -> u64 {
    guard.token().map_or(0, FencingToken::get)
}

/// Whether both cannot be held at the same time, whatever else is held.
fn exclude(one: Mode, other: Mode) -> bool {
    match (one, other) {
        (Mode::Permits { take, of }, Mode::Permits { take: others, .. }) => {
            take.get() + others.get() > of.get()
        }
        _ => (one, other) != (Mode::Shared, Mode::Shared),
    }
}

fn weight(mode: Mode) -> u32 {
    match mode {
        Mode::Permits { take, .. } => take.get(),
        _ => 0,
    }
}
