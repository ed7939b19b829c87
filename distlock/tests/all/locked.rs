//! `#[locked]`: what the name is made of, how long the function waits, and which functions it takes.
#![cfg(all(feature = "macros", feature = "memory"))]
#![allow(clippy::unwrap_used, reason = "tests")]
#![deny(unused_braces)]

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use distlock::{
    DistributedLock, ErrorKind, FencingToken, LockClient, LockError, LockGuard, LossReason, blocking, locked,
};

async fn client(server: &str) -> LockClient {
    distlock::connect(format!("memory:locked-{server}")).await.unwrap()
}

async fn is_held(locks: &LockClient, name: &str) -> bool {
    locks.status(name).await.unwrap().is_held()
}

#[derive(Debug)]
enum PayError {
    Lock(LockError),
    NoMoney,
}

impl From<LockError> for PayError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl PayError {
    fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Lock(error) => Some(error.kind()),
            Self::NoMoney => None,
        }
    }
}

struct Order {
    id: u32,
    lines: Vec<String>,
}

impl Order {
    fn shard(&self, of: u32) -> u32 {
        self.id % of
    }
}

struct Billing {
    locks: LockClient,
    region: &'static str,
    paid: AtomicU32,
    prices: BTreeMap<String, u32>,
}

impl Billing {
    async fn at(server: &str) -> Self {
        let prices = BTreeMap::from([("}".to_owned(), 7)]);
        Self { locks: client(server).await, region: "eu", paid: AtomicU32::new(0), prices }
    }

    #[locked("orders/{order.id}", client = self.locks, wait = "10ms", hold = hold)]
    async fn pay(&self, order: &Order) -> Result<Option<FencingToken>, PayError> {
        assert!(is_held(&self.locks, "orders/42").await);
        self.paid.fetch_add(1, Ordering::Relaxed);
        if order.lines.is_empty() {
            return Err(PayError::NoMoney);
        }
        self.locks.capabilities();
        Ok(hold.token())
    }

    #[locked(
        r#"{{{self.region}}}/{order.shard(8)}/{order.lines[0]}/{self.prices["}"]}/{if moves { 'y' } else { 'n' }}"#,
        client = &self.locks,
    )]
    async fn every_expression(&self, order: Order, moves: bool) -> Result<Vec<String>, LockError> {
        assert!(is_held(&self.locks, "{eu}/2/a/7/y").await);
        if moves { Ok(order.lines) } else { Ok(Vec::new()) }
    }

    #[locked("orders/{order.id}", client = self.locks)]
    async fn pay_twice(&self, order: &Order) -> Result<(), PayError> {
        self.pay(order).await?;
        self.pay(order).await?;
        Ok(())
    }

    #[locked("{self.region}/mutable", client = self.locks)]
    async fn change(&mut self, mut by: u32) -> Result<u32, LockError> {
        by += 1;
        self.prices.insert("new".to_owned(), by);
        self.region = "us";
        Ok(by)
    }

    #[locked("consumed", client = self.locks)]
    async fn consume(self) -> Result<BTreeMap<String, u32>, LockError> {
        Ok(self.prices)
    }
}

fn order() -> Order {
    Order { id: 42, lines: vec!["a".to_owned()] }
}

#[tokio::test]
async fn the_body_runs_under_the_lock_of_its_name() {
    let mut billing = Billing::at("names").await;
    let first = billing.pay(&order()).await.unwrap();
    assert!(billing.pay(&order()).await.unwrap() > first);
    assert!(!is_held(&billing.locks, "orders/42").await);
    assert_eq!(billing.every_expression(order(), true).await.unwrap(), ["a"]);
    assert_eq!(billing.change(1).await.unwrap(), 2);
    assert_eq!(billing.region, "us");
    assert_eq!(billing.consume().await.unwrap()["new"], 2);
}

#[tokio::test]
async fn an_early_return_and_a_question_mark_end_the_function() {
    let billing = Billing::at("returns").await;
    let empty = Order { id: 42, lines: vec![] };
    assert!(matches!(billing.pay(&empty).await, Err(PayError::NoMoney)));
    assert!(matches!(billing.pay_twice(&empty).await, Err(PayError::NoMoney)));
    assert_eq!(billing.paid.load(Ordering::Relaxed), 2);
    assert!(!is_held(&billing.locks, "orders/42").await);
}

#[tokio::test]
async fn a_function_under_the_lock_enters_again() {
    let billing = Billing::at("reentry").await;
    billing.pay_twice(&order()).await.unwrap();
    assert_eq!(billing.paid.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_busy_lock_is_an_error_and_the_body_does_not_run() {
    let billing = Billing::at("busy").await;
    let guard = billing.locks.mutex("orders/42").unwrap().acquire().await.unwrap();
    assert_eq!(billing.pay(&order()).await.unwrap_err().kind(), Some(ErrorKind::Busy));
    assert_eq!(billing.paid.load(Ordering::Relaxed), 0);
    guard.release().await.unwrap();
    billing.pay(&order()).await.unwrap();
}

#[locked("nightly", client = locks, wait = "0s", on_busy = skip)]
async fn nightly(locks: &LockClient, fails: Option<ErrorKind>) -> Result<Option<u32>, PayError> {
    if fails.is_some() {
        // An error of the body is no reason to skip, even if it looks like one.
        let other = locks.mutex("other")?;
        let _held = other.acquire().await?;
        other.acquire_for(Duration::ZERO).await?.release().await?;
    }
    Ok(Some(7))
}

#[tokio::test]
async fn a_busy_lock_is_skipped_on_request() {
    let locks = client("skip").await;
    assert_eq!(nightly(&locks, None).await.unwrap(), Some(7));
    let guard = locks.mutex("nightly").unwrap().acquire().await.unwrap();
    assert_eq!(nightly(&locks, None).await.unwrap(), None);
    guard.release().await.unwrap();
    let error = nightly(&locks, Some(ErrorKind::Busy)).await.unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::Busy));
    locks.close(Duration::ZERO).await.unwrap();
    assert_eq!(nightly(&locks, None).await.unwrap_err().kind(), Some(ErrorKind::Closed));
}

#[locked("breakable", client = locks)]
async fn works_for_ever(locks: &LockClient, steps: &AtomicU32) -> Result<(), LockError> {
    loop {
        steps.fetch_add(1, Ordering::Relaxed);
        for holder in locks.status("breakable").await?.holders {
            locks.break_holder("breakable", &holder.id).await?;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_loss_stops_the_body() {
    let steps = AtomicU32::new(0);
    let error = works_for_ever(&client("loss").await, &steps).await.unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(LossReason::Broken)));
    assert!(steps.into_inner() > 0);
}

#[locked("catalog", client = locks, mode = read, wait = "0s")]
async fn reads(locks: &LockClient) -> Result<bool, LockError> {
    Ok(locks.rw_lock("catalog")?.read().is_locked())
}

#[locked("catalog", client = locks, mode = write, wait = "0s")]
async fn writes(locks: &LockClient) -> Result<(), LockError> {
    Ok(())
}

#[locked("catalog", client = locks, mode = read, wait = "0s")]
fn reads_blocking(locks: &blocking::LockClient) -> Result<bool, LockError> {
    Ok(locks.rw_lock("catalog")?.read().is_locked())
}

#[tokio::test]
async fn readers_run_beside_each_other_and_a_writer_does_not() {
    let locks = client("sides").await;
    let reading = locks.rw_lock("catalog").unwrap().read().acquire().await.unwrap();
    assert!(reads(&locks).await.unwrap());
    assert_eq!(writes(&locks).await.unwrap_err().kind(), ErrorKind::Busy);
    let same = blocking::LockClient::from(locks.clone());
    assert!(tokio::task::spawn_blocking(move || reads_blocking(&same).unwrap()).await.unwrap());
    reading.release().await.unwrap();
    let writing = locks.mutex("catalog").unwrap().acquire().await.unwrap();
    assert_eq!(reads(&locks).await.unwrap_err().kind(), ErrorKind::Busy);
    writing.release().await.unwrap();
    writes(&locks).await.unwrap();
}

mod jobs {
    use super::*;

    #[locked(client = locks)]
    pub(super) async fn unnamed(locks: &LockClient) -> Result<bool, LockError> {
        Ok(is_held(locks, concat!(module_path!(), "::unnamed")).await)
    }
}

#[tokio::test]
async fn without_a_name_it_is_the_path_of_the_function() {
    let locks = client("path").await;
    assert!(jobs::unnamed(&locks).await.unwrap());
    let guard = locks.mutex(concat!(module_path!(), "::jobs::unnamed")).unwrap().acquire().await.unwrap();
    let waits = tokio::time::timeout(Duration::from_millis(20), jobs::unnamed(&locks)).await;
    assert!(waits.is_err());
    guard.release().await.unwrap();
}

#[locked(lock = lock, on_busy = error, wait = "1h 30m")]
async fn with_a_lock(lock: &Arc<dyn DistributedLock>) -> Result<bool, LockError> {
    Ok(lock.is_locked())
}

#[derive(Debug)]
struct Own(Arc<dyn DistributedLock>);

#[async_trait]
impl DistributedLock for Own {
    fn name(&self) -> &distlock::LockName {
        self.0.name()
    }
    fn clock(&self) -> &distlock::spi::Clock {
        self.0.clock()
    }
    async fn acquire_as(
        &self,
        owner: distlock::Owner,
        wait: distlock::spi::Wait,
    ) -> Result<Option<LockGuard>, LockError> {
        self.0.acquire_as(owner, wait).await
    }
    async fn release_as(&self, owner: distlock::Owner) -> Result<(), LockError> {
        self.0.release_as(owner).await
    }
    fn hold_of(&self, owner: distlock::Owner) -> Option<distlock::Hold> {
        self.0.hold_of(owner)
    }
    fn hold_count_of(&self, owner: distlock::Owner) -> u64 {
        self.0.hold_count_of(owner)
    }
    fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
    fn add_listener(&self, listener: Arc<dyn distlock::LockListener>) -> distlock::events::Subscription {
        self.0.add_listener(listener)
    }
}

#[locked(lock = lock)]
async fn with_a_lock_of_its_own_kind(lock: Arc<Own>) -> Result<bool, LockError> {
    Ok(lock.is_locked())
}

#[tokio::test]
async fn a_lock_that_is_there_already_is_taken() {
    let lock = client("given").await.mutex("a").unwrap();
    assert!(with_a_lock(&lock).await.unwrap());
    assert!(with_a_lock_of_its_own_kind(Arc::new(Own(lock.clone()))).await.unwrap());
    assert!(!lock.is_locked());
}

#[locked("{key}", client = locks)]
async fn generic<'a, K, const N: usize>(
    locks: Arc<LockClient>,
    key: K,
    values: &'a [u32; N],
    show: impl Fn(u32) -> String + Send,
) -> Result<(&'a u32, String), Box<dyn std::error::Error + Send + Sync>>
where
    K: Display + Debug + Send,
{
    let parsed: u32 = key.to_string().parse()?;
    let value = values.get(parsed as usize).ok_or("no such value")?;
    Ok((value, show(*value)))
}

#[locked("opaque", client = locks)]
async fn opaque(locks: &LockClient) -> Result<impl Display + use<>, LockError> {
    if locks.capabilities().backend.is_empty() {
        return Ok("nothing");
    }
    Ok("opaque")
}

/// Another name for the same kind of type.
type Answer<T> = Result<T, PayError>;

#[locked("patterns/{first}/{second}", client = locks)]
async fn patterns(
    locks: &LockClient,
    (first, second): (u32, String),
    Order { id, .. }: Order,
    _: bool,
) -> Answer<String> {
    assert!(is_held(locks, "patterns/1/b").await);
    Ok(second + &(first + id).to_string())
}

#[tokio::test]
async fn generic_functions_are_functions_too() {
    let locks = client("generic").await;
    let shared = Arc::new(locks.clone());
    let values = [1, 2, 3];
    let show = |value| format!("<{value}>");
    assert_eq!(generic(shared.clone(), 1, &values, show).await.unwrap(), (&2, "<2>".to_owned()));
    assert_eq!(generic(shared.clone(), "9", &values, show).await.unwrap_err().to_string(), "no such value");
    assert!(generic(shared, "x", &values, show).await.unwrap_err().to_string().contains("digit"));
    assert_eq!(opaque(&locks).await.unwrap().to_string(), "opaque");
    assert_eq!(patterns(&locks, (1, "b".to_owned()), order(), true).await.unwrap(), "b43");
}

#[test]
fn the_future_can_be_spawned() {
    fn is_send<T: Send>(future: impl Future<Output = T> + Send) {
        drop(future);
    }
    fn of(billing: &Billing, order: &Order) {
        is_send(billing.pay(order));
        is_send(nightly(&billing.locks, None));
        is_send(Till::ring(billing, 1));
    }
    let _ = of;
}

#[async_trait]
trait Till {
    async fn ring(&self, amount: u32) -> Result<u32, PayError>;

    #[locked("till/{amount}", client = self.client(), wait = "10ms", on_busy = skip, hold = held)]
    async fn provided(&self, amount: u32) -> Result<Option<u64>, PayError>
    where
        Self: Sync,
    {
        let token = held.require_token()?;
        Ok(Some(token.get()))
    }

    fn client(&self) -> &LockClient;
}

#[async_trait]
impl Till for Billing {
    #[locked("till/{self.region}/{amount}", client = self.locks, wait = "10ms", hold = hold)]
    async fn ring(&self, amount: u32) -> Result<u32, PayError> {
        assert!(hold.is_valid() && is_held(&self.locks, "till/eu/3").await);
        if amount == 0 {
            return Err(PayError::NoMoney);
        }
        self.paid.fetch_add(amount, Ordering::Relaxed);
        Ok(amount)
    }

    fn client(&self) -> &LockClient {
        &self.locks
    }
}

#[tokio::test]
async fn methods_of_an_async_trait_run_under_the_lock() {
    let billing = Billing::at("async-trait").await;
    assert_eq!(billing.ring(3).await.unwrap(), 3);
    let guard = billing.locks.mutex("till/eu/3").unwrap().acquire().await.unwrap();
    assert_eq!(billing.ring(3).await.unwrap_err().kind(), Some(ErrorKind::Busy));
    drop(guard);
    assert!(billing.provided(5).await.unwrap().is_some());
    let _guard = billing.locks.mutex("till/5").unwrap().acquire().await.unwrap();
    assert!(billing.provided(5).await.unwrap().is_none());
}

trait Native {
    fn act(&self) -> impl Future<Output = Result<u32, LockError>> + Send;
}

impl Native for Billing {
    #[locked("native", client = self.locks)]
    async fn act(&self) -> Result<u32, LockError> {
        Ok(self.paid.fetch_add(1, Ordering::Relaxed))
    }
}

#[tokio::test]
async fn methods_of_a_trait_run_under_the_lock() {
    assert_eq!(Billing::at("native").await.act().await.unwrap(), 0);
}

#[locked("attributes", client = client("attributes").await)]
#[tokio::test]
async fn another_attribute_stands_below() -> Result<(), LockError> {
    assert!(is_held(&client("attributes").await, "attributes").await);
    Ok(())
}

#[locked("stacked/outer", client = locks)]
#[locked("stacked/inner", client = locks)]
async fn stacked(locks: &LockClient) -> Result<bool, LockError> {
    Ok(is_held(locks, "stacked/outer").await && is_held(locks, "stacked/inner").await)
}

#[tokio::test]
async fn several_locks_are_held_together() {
    assert!(stacked(&client("stacked").await).await.unwrap());
}

struct Tool {
    locks: blocking::LockClient,
}

impl Tool {
    #[locked("tool/{number}", client = self.locks, wait = "10ms", hold = hold)]
    fn work(&self, number: u32) -> Result<u32, PayError> {
        assert!(hold.is_valid());
        if number == 0 {
            return Err(PayError::NoMoney);
        }
        Ok(number)
    }

    #[locked("tool/{number}", client = self.locks, wait = "0s", on_busy = skip)]
    fn skips(&self, number: u32) -> Result<Option<u32>, LockError> {
        Ok(Some(number))
    }
}

#[locked(lock = lock)]
fn given(lock: &blocking::DistributedLock) -> Result<bool, LockError> {
    Ok(lock.is_locked())
}

#[test]
fn a_function_that_blocks_has_a_blocking_client() {
    let tool = Tool { locks: blocking::connect("memory:locked-blocking").unwrap() };
    assert_eq!(tool.work(1).unwrap(), 1);
    assert!(matches!(tool.work(0), Err(PayError::NoMoney)));
    assert_eq!(tool.skips(1).unwrap(), Some(1));
    let lock = tool.locks.mutex("tool/1").unwrap();
    let guard = lock.acquire().unwrap();
    assert_eq!(tool.work(1).unwrap_err().kind(), Some(ErrorKind::Busy));
    assert_eq!(tool.skips(1).unwrap(), None);
    guard.release().unwrap();
    assert!(given(&lock).unwrap());
}

#[rustfmt::skip] // on one line, as the compiler's lint wants it
#[locked("short", client = locks)]
async fn short(locks: &LockClient) -> Result<u32, LockError> { Ok(42) }

/// The compiler calls no braces unnecessary that the user has written around the body.
#[tokio::test]
async fn a_body_of_one_expression_brings_no_warning() {
    assert_eq!(short(&client("short").await).await.unwrap(), 42);
}

#[locked("own words", client = locks)]
async fn with_words_of_its_own(locks: &LockClient) -> Result<u32, LockError> {
    type Result = u32;
    let number: Result = 42;
    Ok(number)
}

#[tokio::test]
async fn what_a_body_declares_changes_nothing_of_what_the_function_returns() {
    assert_eq!(with_words_of_its_own(&client("own-words").await).await.unwrap(), 42);
}
