//! Walks at random through what may happen: requests are carried out late, answers are lost, attempts are cancelled, writers go on
//! reading, sessions end, holds are broken. In every state no two believe that they have what excludes the other, tokens rise, and nothing is
//! left of what was undone.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_core::{
    AcquireRequest, Backend, BackendContext, Broken, ClientBuilder, Clock, Downgraded, Grant, HolderId,
    InspectRequest, LockClient, LockError, LockKind, ManualClock, Mode, Moment, Released, Wait,
};

use super::request;
use super::store::{Client as Store, MemoryClaim, MemoryStore};
use crate::{EntriesBackend, EntryLease};

const STEPS: usize = 3_000;

/// How long a holder may take to stop when it learns that its hold is broken, and how long it may take to learn of it.
const STOPS_WITHIN: Duration = Duration::from_secs(2);
const TOLD_WITHIN: Duration = Duration::from_secs(1);

type Work<T> = Pin<Box<dyn Future<Output = Result<T, LockError>>>>;
type Lease = EntryLease<MemoryClaim>;

/// How many walks: so many because the pauses between attempts are random too, so that what one walk has found, the next one with its seed
/// may miss.
fn seeds() -> u64 {
    std::env::var("DISTLOCK_WALKS").ok().and_then(|walks| walks.parse().ok()).unwrap_or(300)
}

/// "Xorshift RNGs" (Marsaglia, 2003).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 16) % limit as u64).unwrap()
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

/// A machine, with a clock that the test moves.
struct Machine {
    context: BackendContext,
    time: ManualClock,
    _client: LockClient,
}

impl Machine {
    fn new() -> Self {
        let (clock, time) = Clock::manual();
        let mut context = None;
        let builder = ClientBuilder::new().clock(clock).abort_margin(STOPS_WITHIN);
        let client = builder.build(|of_client| {
            context = Some(of_client.clone());
            MemoryStore::default().client(of_client)
        });
        Self { context: context.unwrap(), time, _client: client.unwrap() }
    }
}

struct Client {
    backend: Arc<EntriesBackend<Store>>,
    session: u64,
    is_doing: Doing,
}

enum Doing {
    Nothing,
    Acquiring(AcquireRequest, Work<Option<Grant<Lease>>>),
    Cancelling(AcquireRequest, Work<()>),
    /// It holds in this mode.
    Holding(AcquireRequest, Mode, Arc<Grant<Lease>>),
    /// It goes on reading, with another request.
    Downgrading(AcquireRequest, AcquireRequest, Arc<Grant<Lease>>, Work<Downgraded<Lease>>),
    Releasing(AcquireRequest, Arc<Grant<Lease>>, Work<Released>),
    /// An operator takes the lock from a holder.
    Breaking(Work<Broken>),
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

struct World<'a> {
    /// How many permits the semaphore has; none for a lock.
    of: Option<NonZeroU32>,
    machine: &'a Machine,
    store: MemoryStore,
    clients: Vec<Client>,
    dice: Dice,
    ids: u128,
    undone: HashSet<String>,
    /// Until when the holders whose entries were marked as broken may go on.
    stop_by: HashMap<String, Moment>,
    /// The highest token of an exclusive holder.
    highest: u64,
    grants: usize,
}

fn poll<F: Future + Unpin + ?Sized>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

impl<'a> World<'a> {
    fn new(machine: &'a Machine, of: Option<NonZeroU32>, seed: u64) -> Self {
        let store = MemoryStore::default();
        store.be_slow(true);
        let clients = (0..3).map(|_| Client::new(&store, machine)).collect();
        let dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self {
            of,
            machine,
            store,
            clients,
            dice,
            ids: 0,
            undone: HashSet::new(),
            stop_by: HashMap::new(),
            highest: 0,
            grants: 0,
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
            0..=3 => self.a_request_goes_on(),
            4 if self.dice.one_in(4) => self.machine.time.advance(Duration::from_millis(500)),
            _ => {
                let number = self.dice.below(self.clients.len());
                self.client_goes_on(number)?;
            }
        }
        self.check()
    }

    fn a_request_goes_on(&mut self) {
        let open = self.store.open();
        if open.is_empty() {
            return;
        }
        // The oldest may stay on the way for long.
        let latest = open[open.len() - 1];
        let number = if self.dice.one_in(3) { open[self.dice.below(open.len())] } else { latest };
        match self.dice.below(20) {
            0 => self.store.lose(number),
            1 => {
                self.store.carry_out(number, false);
                self.store.lose(number);
            }
            _ => self.store.carry_out(number, true),
        }
    }

    fn client_goes_on(&mut self, number: usize) -> Result<(), String> {
        let Self { of, machine, store, clients, dice, ids, stop_by, .. } = self;
        let client = &mut clients[number];
        if dice.one_in(300) {
            // Its session ends, and the client learns of it.
            store.end(client.session);
            *client = Client::new(store, machine);
        }
        let now = machine.context.clock().now();
        let has_stopped = |name: &String| stop_by.get(name).is_some_and(|by| now >= *by);
        client.is_doing = match std::mem::replace(&mut client.is_doing, Doing::Nothing) {
            Doing::Nothing if dice.one_in(10) => match store.names().first() {
                Some(first) => client.break_holder(first, of.is_some()),
                None => Doing::Nothing,
            },
            Doing::Breaking(_) if dice.one_in(300) => Doing::Nothing,
            Doing::Breaking(mut work) => match poll(&mut work) {
                Poll::Pending => Doing::Breaking(work),
                Poll::Ready(_) => Doing::Nothing,
            },
            Doing::Nothing => {
                *ids += 1;
                let mode = match *of {
                    Some(of) => {
                        let take = 1 + u32::try_from(dice.below(of.get().try_into().unwrap())).unwrap();
                        Mode::Permits { take: NonZeroU32::new(take).unwrap(), of }
                    }
                    None if dice.one_in(3) => Mode::Shared,
                    None => Mode::Exclusive,
                };
                let wait = if dice.one_in(4) { Wait::Try } else { Wait::Forever };
                client.acquire(request(*ids, mode, wait))
            }
            Doing::Acquiring(request, _) if dice.one_in(60) => client.cancel(request),
            Doing::Acquiring(request, mut work) => match poll(&mut work) {
                Poll::Pending => Doing::Acquiring(request, work),
                Poll::Ready(Ok(Some(grant))) => return self.granted(number, request, grant),
                // A try is made once: the core cancels it after an error.
                Poll::Ready(Err(_)) if request.wait() != Wait::Try && dice.one_in(2) => {
                    client.acquire(request)
                }
                Poll::Ready(_) => client.cancel(request),
            },
            Doing::Cancelling(request, mut work) => match poll(&mut work) {
                Poll::Pending => Doing::Cancelling(request, work),
                Poll::Ready(Err(_)) => client.cancel(request),
                Poll::Ready(Ok(())) => {
                    self.undone.insert(client.name_of(&request));
                    Doing::Nothing
                }
            },
            Doing::Holding(request, _, grant)
                if has_stopped(&client.name_of(&request)) || dice.one_in(20) =>
            {
                client.release(request, grant)
            }
            Doing::Holding(writer, Mode::Exclusive, grant) if dice.one_in(20) => {
                *ids += 1;
                client.downgrade(writer, request(*ids, Mode::Shared, Wait::Forever), grant)
            }
            holding @ Doing::Holding(..) => holding,
            Doing::Downgrading(writer, reader, grant, mut work) => match poll(&mut work) {
                Poll::Pending => Doing::Downgrading(writer, reader, grant, work),
                Poll::Ready(Ok(Downgraded::Shared(shared))) => {
                    if shared.token != grant.token {
                        return Err(format!("token {:?} after {:?}", shared.token, grant.token));
                    }
                    Doing::Holding(writer, Mode::Shared, Arc::new(shared))
                }
                Poll::Ready(Err(_)) if dice.one_in(2) => client.downgrade(writer, reader, grant),
                Poll::Ready(_) => client.release(writer, grant),
            },
            Doing::Releasing(request, grant, mut work) => match poll(&mut work) {
                Poll::Pending => Doing::Releasing(request, grant, work),
                Poll::Ready(Err(_)) => client.release(request, grant),
                Poll::Ready(Ok(Released::Clean)) => {
                    self.undone.insert(client.name_of(&request));
                    Doing::Nothing
                }
                // The first request was carried out, and its answer lost.
                Poll::Ready(Ok(_)) => client.cancel(request),
            },
        };
        Ok(())
    }

    fn granted(&mut self, number: usize, request: AcquireRequest, grant: Grant<Lease>) -> Result<(), String> {
        let token = grant.token.unwrap().get();
        if token <= self.highest {
            return Err(format!("token {token} after {}", self.highest));
        }
        if request.mode() == Mode::Exclusive {
            self.highest = token;
        }
        self.grants += 1;
        let mode = request.mode();
        self.clients[number].is_doing = Doing::Holding(request, mode, Arc::new(grant));
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        let now = self.machine.context.clock().now();
        for name in self.store.marked() {
            self.stop_by.entry(name).or_insert_with(|| now.plus(TOLD_WITHIN + STOPS_WITHIN));
        }
        let mode = |client: &Client| {
            let (request, mode) = match &client.is_doing {
                Doing::Holding(request, mode, _) => (request, *mode),
                Doing::Downgrading(request, ..) => (request, Mode::Shared),
                _ => return None,
            };
            let goes_on = self.stop_by.get(&client.name_of(request)).is_none_or(|by| now < *by);
            goes_on.then_some(mode)
        };
        let held: Vec<_> = self.clients.iter().filter_map(mode).collect();
        let taken: u32 = held.iter().map(|mode| weight(*mode)).sum();
        if taken > self.of.map_or(WHOLE, NonZeroU32::get) {
            return Err(format!("at the same time: {held:?}"));
        }
        match self.store.names().into_iter().find(|name| self.undone.contains(name)) {
            Some(name) => Err(format!("{name} was undone and is back")),
            None => Ok(()),
        }
    }
}

impl Client {
    fn new(store: &MemoryStore, machine: &Machine) -> Self {
        let client = store.open_client(machine.context.clone());
        let session = client.session;
        Self { backend: Arc::new(EntriesBackend::new(client).unwrap()), session, is_doing: Doing::Nothing }
    }

    fn name_of(&self, request: &AcquireRequest) -> String {
        format!("{}-{}", self.session, request.id())
    }

    fn acquire(&self, request: AcquireRequest) -> Doing {
        let (backend, sent) = (Arc::clone(&self.backend), request.clone());
        Doing::Acquiring(request, Box::pin(async move { backend.acquire(&sent).await }))
    }

    fn cancel(&self, request: AcquireRequest) -> Doing {
        let (backend, sent) = (Arc::clone(&self.backend), request.clone());
        Doing::Cancelling(request, Box::pin(async move { backend.cancel(&sent).await }))
    }

    fn downgrade(&self, writer: AcquireRequest, reader: AcquireRequest, grant: Arc<Grant<Lease>>) -> Doing {
        let (backend, held, sent) = (Arc::clone(&self.backend), Arc::clone(&grant), reader.clone());
        let work = Box::pin(async move { backend.downgrade(&held.lease, &sent).await });
        Doing::Downgrading(writer, reader, grant, work)
    }

    fn release(&self, request: AcquireRequest, grant: Arc<Grant<Lease>>) -> Doing {
        let (backend, held) = (Arc::clone(&self.backend), Arc::clone(&grant));
        let releasing = Box::pin(async move { backend.release(&held.lease).await });
        Doing::Releasing(request, grant, releasing)
    }

    fn break_holder(&self, name: &str, is_semaphore: bool) -> Doing {
        let (backend, holder) = (Arc::clone(&self.backend), HolderId::new(name));
        let kind = if is_semaphore { LockKind::Semaphore } else { LockKind::Lock };
        let breaking =
            async move { backend.break_holder(&InspectRequest::found("room", kind)?, &holder).await };
        Doing::Breaking(Box::pin(breaking))
    }
}

fn walks(of: Option<NonZeroU32>) {
    let machine = Machine::new();
    let walk =
        |seed| World::new(&machine, of, seed).walk().unwrap_or_else(|wrong| panic!("seed {seed}, {wrong}"));
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

/// The walk would find a store that forgets what was undone.
#[test]
fn a_store_that_creates_what_was_undone_is_found() {
    let machine = Machine::new();
    let found = (1..=seeds()).find_map(|seed| {
        let world = World::new(&machine, None, seed);
        world.store.become_careless();
        world.walk().err()
    });
    assert!(found.is_some_and(|wrong| wrong.contains("is back")));
}

/// Nothing is lost either: when requests are answered again, all are served.
#[test]
fn after_every_walk_the_lock_can_be_had() {
    let machine = Machine::new();
    for seed in 1..=20 {
        let mut world = World::new(&machine, None, seed);
        for _ in 0..STEPS / 10 {
            world.step().unwrap();
        }
        world.store.be_slow(false);
        for client in &world.clients {
            world.store.end(client.session);
        }
        let client = Client::new(&world.store, &machine);
        let last = request(u128::MAX, Mode::Exclusive, Wait::Try);
        let granted = poll(&mut Box::pin(client.backend.acquire(&last)));
        assert!(matches!(granted, Poll::Ready(Ok(Some(_)))), "seed {seed}: {:?}", world.store.names());
    }
}
