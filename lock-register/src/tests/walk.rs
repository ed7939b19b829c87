//! Walks at random through what may happen: requests are carried out late or twice as late, answers are lost, clients stand
//! still and die, clocks drift apart, writers go on reading, holds are broken. In every state no two believe that they have what excludes
//! the other, tokens rise, and nothing is left of what was undone.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lock_core::{
    AcquireRequest, AttemptId, Backend, Broken, Downgraded, Grant, GroupId, HolderId, InspectRequest,
    LeaseState, LockError, LockKind, Mode, Moment, Released, Term, Wait,
};

use super::store::MemoryStore;
use super::{LEASE, Machine, poll, request};
use crate::{RegisterBackend, RegisterLease};

const STEPS: usize = 3_000;

type Work<T> = Pin<Box<dyn Future<Output = Result<T, LockError>>>>;
type Lease = Arc<RegisterLease<MemoryStore>>;

/// How many walks.
fn seeds() -> u64 {
    std::env::var("DISTLOCK_WALKS").ok().and_then(|walks| walks.parse().ok()).unwrap_or(60)
}

/// "Xorshift RNGs" (Marsaglia, 2003).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

struct Client<'a> {
    machine: &'a Machine,
    backend: Arc<RegisterBackend<MemoryStore>>,
    is_doing: Doing,
    /// It stands still for so many steps.
    stands: u64,
}

enum Doing {
    Nothing,
    Acquiring(AcquireRequest, Work<Option<Grant<RegisterLease<MemoryStore>>>>),
    Cancelling(AcquireRequest, Work<()>),
    Holding(Hold),
    /// It goes on reading, with another request.
    Downgrading(Hold, AcquireRequest, Work<Downgraded<RegisterLease<MemoryStore>>>),
    /// It releases its hold, and before that undoes what it may have left of a downgrade.
    Releasing(Hold, Option<AcquireRequest>, Work<Released>),
    /// An operator takes the lock from this attempt.
    Breaking(u128, Work<Broken>),
}

struct Hold {
    request: AcquireRequest,
    token: u64,
    lease: Lease,
    /// The holder does not rely on it after that.
    until: Moment,
    /// A renewal, and when it began.
    renewing: Option<(Moment, Work<Vec<LeaseState>>)>,
}

/// How long a holder relies on its lease.
fn relies_until(anchor: Moment) -> Moment {
    anchor.plus(LEASE * 49 / 50)
}

/// What a writer has, and readers have a part of.
const WHOLE: u32 = 100;

fn weight(mode: Mode) -> u32 {
    match mode {
        Mode::Shared => 1,
        Mode::Permits { take, .. } => take.get(),
        _ => WHOLE,
    }
}

/// What an attempt asks for.
fn wish(dice: &mut Dice, of: Option<NonZeroU32>) -> (Mode, Wait) {
    let mode = match of {
        Some(of) => {
            let take = 1 + u32::try_from(dice.below(of.get().into())).unwrap();
            Mode::Permits { take: NonZeroU32::new(take).unwrap(), of }
        }
        None if dice.one_in(3) => Mode::Shared,
        None => Mode::Exclusive,
    };
    (mode, if dice.one_in(4) { Wait::Try } else { Wait::Forever })
}

struct World<'a> {
    /// How many permits the semaphore has; none for a lock.
    of: Option<NonZeroU32>,
    store: MemoryStore,
    clients: Vec<Client<'a>>,
    dice: Dice,
    ids: u128,
    undone: HashSet<u128>,
    /// Whom the store says to have held the lock, when it was checked last; and the tokens of those from which it was taken. Their
    /// clients learn of it later.
    held: HashMap<u64, u128>,
    broken: HashSet<u64>,
    /// The attempts of these.
    taken_from: HashSet<u128>,
    /// The highest token that a holder knows, and the highest of an exclusive one.
    tokens: (u64, u64),
    grants: usize,
    /// The version of the object that was checked last.
    checked: u64,
}

impl<'a> World<'a> {
    fn new(machines: &'a [Machine], of: Option<NonZeroU32>, seed: u64) -> Self {
        let store = MemoryStore::default();
        store.slow_down();
        let client = |machine: &'a Machine| Client {
            machine,
            backend: machine.client(&store),
            is_doing: Doing::Nothing,
            stands: 0,
        };
        let clients = machines.iter().map(client).collect();
        let dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self {
            of,
            store,
            clients,
            dice,
            ids: 0,
            undone: HashSet::new(),
            held: HashMap::new(),
            broken: HashSet::new(),
            taken_from: HashSet::new(),
            tokens: (0, 0),
            grants: 0,
            checked: 0,
        }
    }

    /// Walks, and returns how often the lock was granted.
    fn walk(mut self) -> Result<usize, String> {
        for step in 0..STEPS {
            self.step().map_err(|wrong| format!("step {step}: {wrong}"))?;
        }
        Ok(self.grants)
    }

    fn step(&mut self) -> Result<(), String> {
        match self.dice.below(10) {
            0 => self.time_passes(),
            1..=3 => self.a_request_goes_on(),
            _ => {
                let number = usize::try_from(self.dice.below(self.clients.len() as u64)).unwrap();
                self.client_goes_on(number)?;
            }
        }
        self.check()
    }

    /// Each clock runs as fast as it does: 1 % fast, true, 1 % slow.
    fn time_passes(&mut self) {
        let most = if self.dice.one_in(8) { 20 } else { 200 };
        let passed = LEASE * u32::try_from(self.dice.below(10)).unwrap() / most;
        for (client, percent) in self.clients.iter().zip([101, 100, 99]) {
            client.machine.time.advance(passed * percent / 100);
        }
    }

    fn a_request_goes_on(&mut self) {
        let open = self.store.open();
        if open.is_empty() {
            return;
        }
        let number = if self.dice.one_in(3) {
            open[usize::try_from(self.dice.below(open.len() as u64)).unwrap()]
        } else {
            open[open.len() - 1]
        };
        match self.dice.below(20) {
            0 => self.store.lose(number),
            3 => self.store.refuse(number),
            1 => drop(self.store.carry_out(number)),
            2 => {
                self.store.carry_out(number);
                self.store.lose(number);
            }
            _ => {
                let carried = self.store.carry_out(number);
                self.store.answer(carried);
            }
        }
    }

    fn client_goes_on(&mut self, number: usize) -> Result<(), String> {
        let Self { of, store, clients, dice, ids, taken_from, .. } = self;
        let client = &mut clients[number];
        if client.stands > 0 {
            client.stands -= 1;
            return Ok(());
        }
        if dice.one_in(150) {
            client.stands = dice.below(60);
            return Ok(());
        }
        if dice.one_in(300) {
            // It dies, and another begins, which knows nothing.
            client.backend = client.machine.client(store);
            client.is_doing = Doing::Nothing;
        }
        let now = client.backend.now();
        client.is_doing = match std::mem::replace(&mut client.is_doing, Doing::Nothing) {
            Doing::Nothing => {
                let (holders, _) = store.ids();
                if dice.one_in(10) && !holders.is_empty() {
                    let holder = holders[usize::try_from(dice.below(holders.len() as u64)).unwrap()];
                    client.break_holder(holder, of.is_some())
                } else {
                    *ids += 1;
                    let (mode, wait) = wish(dice, *of);
                    client.acquire(request(*ids, mode, wait))
                }
            }
            Doing::Breaking(..) if dice.one_in(60) => Doing::Nothing,
            Doing::Breaking(id, mut work) => match poll(&mut work) {
                Poll::Pending => Doing::Breaking(id, work),
                Poll::Ready(Ok(told)) if told.taken_away && !taken_from.contains(&id) => {
                    return Err(format!("{id} is reported as broken and is not"));
                }
                Poll::Ready(_) => Doing::Nothing,
            },
            Doing::Acquiring(request, _) if dice.one_in(60) => client.cancel(request),
            Doing::Acquiring(request, mut work) => match poll(&mut work) {
                Poll::Pending => Doing::Acquiring(request, work),
                Poll::Ready(Ok(Some(grant))) => return self.granted(number, request, &grant),
                Poll::Ready(Err(_)) if dice.one_in(2) => client.acquire(request),
                Poll::Ready(_) => client.cancel(request),
            },
            Doing::Cancelling(request, mut work) => match poll(&mut work) {
                Poll::Pending => Doing::Cancelling(request, work),
                Poll::Ready(Err(_)) => client.cancel(request),
                Poll::Ready(Ok(())) => {
                    self.undone.insert(request.id().get());
                    Doing::Nothing
                }
            },
            Doing::Releasing(hold, reader, mut work) => match poll(&mut work) {
                Poll::Pending => Doing::Releasing(hold, reader, work),
                Poll::Ready(Err(_)) if reader.is_none() => client.cancel(hold.request),
                Poll::Ready(Err(_)) => client.release(hold, reader),
                Poll::Ready(Ok(_)) => {
                    let requests = [Some(hold.request), reader].into_iter().flatten();
                    self.undone.extend(requests.map(|request| request.id().get()));
                    Doing::Nothing
                }
            },
            Doing::Downgrading(hold, reader, _) if now >= hold.until || dice.one_in(80) => {
                client.release(hold, Some(reader))
            }
            Doing::Downgrading(hold, reader, mut work) => match poll(&mut work) {
                Poll::Pending => Doing::Downgrading(hold, reader, work),
                Poll::Ready(Ok(Downgraded::Shared(grant))) => {
                    self.undone.insert(hold.request.id().get());
                    return self.granted(number, reader, &grant);
                }
                Poll::Ready(Ok(_)) => {
                    self.undone.insert(reader.id().get());
                    client.release(hold, None)
                }
                Poll::Ready(Err(_)) if dice.one_in(2) => client.downgrade(hold, reader),
                Poll::Ready(Err(_)) => client.release(hold, Some(reader)),
            },
            Doing::Holding(hold) if now >= hold.until || dice.one_in(80) => client.release(hold, None),
            Doing::Holding(hold) if hold.request.mode() == Mode::Exclusive && dice.one_in(40) => {
                *ids += 1;
                client.downgrade(hold, request(*ids, Mode::Shared, Wait::Forever))
            }
            Doing::Holding(mut hold) => {
                match &mut hold.renewing {
                    None if dice.one_in(8) => hold.renewing = Some((now, client.renew(&hold.lease))),
                    None => {}
                    Some((anchor, work)) => match poll(work) {
                        Poll::Pending if dice.one_in(60) => hold.renewing = None,
                        Poll::Pending => {}
                        Poll::Ready(Ok(states)) if states == [LeaseState::Held] => {
                            hold.until = hold.until.max(relies_until(*anchor));
                            hold.renewing = None;
                        }
                        Poll::Ready(Ok(_)) => hold.until = now,
                        Poll::Ready(Err(_)) => hold.renewing = None,
                    },
                }
                Doing::Holding(hold)
            }
        };
        Ok(())
    }

    fn granted(
        &mut self,
        number: usize,
        request: AcquireRequest,
        grant: &Grant<RegisterLease<MemoryStore>>,
    ) -> Result<(), String> {
        let Term::Leased { anchor, .. } = grant.term else { return Err("without a lease".to_owned()) };
        let lease = Arc::new(RegisterLease::new(Arc::clone(grant.lease.slot()), grant.lease.id()));
        let is_exclusive = request.mode() == Mode::Exclusive;
        let token = grant.token.unwrap().get();
        let hold = Hold { request, token, lease, until: relies_until(anchor), renewing: None };
        // A client that stood still may have the answer when the lease is over, or the hold broken.
        if self.clients[number].backend.now() < hold.until && !self.broken.contains(&token) {
            let (highest, of_exclusive) = self.tokens;
            if token <= if is_exclusive { highest } else { of_exclusive } {
                return Err(format!("token {token} after {:?}", self.tokens));
            }
            self.tokens = (highest.max(token), if is_exclusive { token } else { of_exclusive });
            self.grants += 1;
        }
        self.clients[number].is_doing = Doing::Holding(hold);
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        let versions = self.store.versions();
        if std::mem::replace(&mut self.checked, versions) != versions {
            let (broken, held) = (self.store.broken(), self.store.held());
            let is_broken = |(token, id): &(u64, u128)| !held.contains_key(token) && broken.contains(id);
            self.broken.extend(self.held.drain().filter(is_broken).map(|(token, _)| token));
            self.taken_from.extend(&broken);
            if let Some(token) = held.keys().find(|token| self.broken.contains(token)) {
                return Err(format!("the hold with token {token} was broken and is back"));
            }
            self.held = held;
            let (holders, waiters) = self.store.ids();
            if let Some(id) = holders.iter().chain(&waiters).find(|id| self.undone.contains(id)) {
                return Err(format!("{id} was undone and is back"));
            }
        }
        // An operator breaks the hold of a client that has certainly ended.
        let believes = |client: &Client<'_>| {
            let (hold, mode, reader) = match &client.is_doing {
                Doing::Holding(hold) => (hold, hold.request.mode(), None),
                // The store may say already that it is a reader.
                Doing::Downgrading(hold, reader, _) => (hold, Mode::Shared, Some(reader.id().get())),
                _ => return None,
            };
            let is_broken = self.broken.contains(&hold.token)
                || reader.is_some_and(|reader| self.taken_from.contains(&reader));
            (!is_broken && client.backend.now() < hold.until).then_some(mode)
        };
        let held: Vec<_> = self.clients.iter().filter_map(believes).collect();
        let taken: u32 = held.iter().map(|mode| weight(*mode)).sum();
        if taken > self.of.map_or(WHOLE, NonZeroU32::get) {
            return Err(format!("at the same time: {held:?}"));
        }
        Ok(())
    }
}

impl Client<'_> {
    fn acquire(&self, request: AcquireRequest) -> Doing {
        let (backend, sent) = (Arc::clone(&self.backend), request.clone());
        Doing::Acquiring(request, Box::pin(async move { backend.acquire(&sent).await }))
    }

    fn cancel(&self, request: AcquireRequest) -> Doing {
        let (backend, sent) = (Arc::clone(&self.backend), request.clone());
        Doing::Cancelling(request, Box::pin(async move { backend.cancel(&sent).await }))
    }

    fn release(&self, hold: Hold, reader: Option<AcquireRequest>) -> Doing {
        let (backend, lease, undone) = (Arc::clone(&self.backend), Arc::clone(&hold.lease), reader.clone());
        let releasing = async move {
            if let Some(reader) = undone {
                backend.cancel(&reader).await?;
            }
            backend.release(&lease).await
        };
        Doing::Releasing(hold, reader, Box::pin(releasing))
    }

    fn downgrade(&self, hold: Hold, reader: AcquireRequest) -> Doing {
        let (backend, lease, sent) = (Arc::clone(&self.backend), Arc::clone(&hold.lease), reader.clone());
        Doing::Downgrading(hold, reader, Box::pin(async move { backend.downgrade(&lease, &sent).await }))
    }

    fn break_holder(&self, id: u128, is_semaphore: bool) -> Doing {
        let backend = Arc::clone(&self.backend);
        let kind = if is_semaphore { LockKind::Semaphore } else { LockKind::Lock };
        let breaking = async move {
            let holder = HolderId::new(AttemptId::new(id).to_string());
            backend.break_holder(&InspectRequest::found("room", kind)?, &holder).await
        };
        Doing::Breaking(id, Box::pin(breaking))
    }

    fn renew(&self, lease: &Lease) -> Work<Vec<LeaseState>> {
        let (backend, leases) = (Arc::clone(&self.backend), [Arc::clone(lease)]);
        Box::pin(async move { backend.renew(GroupId::new(1), &leases).await })
    }
}

fn walks(of: Option<NonZeroU32>) {
    let machines = [Machine::new(), Machine::new(), Machine::new()];
    let walk =
        |seed| World::new(&machines, of, seed).walk().unwrap_or_else(|wrong| panic!("seed {seed}, {wrong}"));
    let grants: usize = (1..=seeds()).map(walk).sum();
    assert!(grants > 10 * usize::try_from(seeds()).unwrap(), "only {grants} grants");
}

#[test]
fn no_two_believe_that_they_have_what_excludes_the_other() {
    walks(None);
}

#[test]
fn no_more_permits_are_believed_in_than_there_are() {
    walks(NonZeroU32::new(3));
}

/// Some stores do not keep their word. The walk would find that.
#[test]
fn a_store_that_checks_and_writes_in_two_steps_is_found() {
    let machines = [Machine::new(), Machine::new(), Machine::new()];
    let found = (1..=seeds()).find_map(|seed| {
        let world = World::new(&machines, None, seed);
        world.store.become_careless();
        world.walk().err()
    });
    assert!(found.is_some());
}

/// Nothing is lost either: when requests are answered again, all are served.
#[test]
fn after_every_walk_the_lock_can_be_had() {
    let machines = [Machine::new(), Machine::new(), Machine::new()];
    for seed in 1..=10 {
        let mut world = World::new(&machines, None, seed);
        for _ in 0..STEPS / 10 {
            world.step().unwrap();
        }
        world.store.speed_up();
        world.clients.clear();
        let client = machines[0].client(&world.store);
        let last = request(u128::MAX, Mode::Exclusive, Wait::Forever);
        let mut attempt = Box::pin(client.acquire(&last));
        let mut passed = Duration::ZERO;
        while poll(&mut attempt).is_pending() {
            assert!(passed < LEASE * 2, "seed {seed}: {:?}", world.store.object());
            machines[0].time.advance(Duration::from_millis(50));
            passed += Duration::from_millis(50);
        }
    }
}
