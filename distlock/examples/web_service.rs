//! A web service with several replicas: a lock for each order, and a table that refuses late writes.
//!
//! ```sh
//! cargo run -p distlock --example web_service -- file: 127.0.0.1:8080
//! curl -H 'content-type: application/json' -d '{"amount": 30}' http://127.0.0.1:8080/orders/42/payments
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use distlock::{ErrorKind, FencingToken, Hold, LockClient, LockError};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::yield_now;

/// How long a request waits for other requests for the same order.
const PATIENCE: Duration = Duration::from_secs(2);

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "memory:".to_owned());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());

    let mut terminate = signal(SignalKind::terminate())?;
    let locks = distlock::connect(&url).await?;
    let shop = Shop { locks: locks.clone(), orders: Arc::default() };
    let listener = TcpListener::bind(address).await?;
    axum::serve(listener, service(shop))
        .with_graceful_shutdown(async move {
            terminate.recv().await;
        })
        .await?;
    Ok(locks.close(Duration::from_secs(5)).await?) // when the last request is answered
}

#[derive(Clone)]
struct Shop {
    locks: LockClient,
    orders: Arc<Orders>,
}

fn service(shop: Shop) -> Router {
    Router::new().route("/orders/{id}/payments", post(pay)).route("/ready", get(ready)).with_state(shop)
}

async fn pay(
    State(shop): State<Shop>,
    Path(id): Path<u64>,
    Json(payment): Json<Payment>,
) -> Result<Json<Order>, Refusal> {
    let lock = shop.locks.mutex(format!("orders/{id}"))?;
    let order = lock.with_lock_for(PATIENCE, |hold| book(&shop.orders, id, payment, hold)).await?;
    Ok(Json(order))
}

/// Reads, decides and writes. The lock keeps other requests for the same order out meanwhile.
async fn book(orders: &Orders, id: u64, payment: Payment, hold: Hold) -> Result<Order, Refusal> {
    let mut order = orders.read(id).await;
    order.open = order.open.checked_sub(payment.amount).ok_or(Refusal::TooMuch)?;
    orders.write(id, order, hold.require_token()?).await?;
    Ok(order)
}

/// For the readiness probe: without locks the service cannot work.
async fn ready(State(shop): State<Shop>) -> Result<&'static str, Refusal> {
    shop.locks.ping().await?;
    Ok("ready")
}

#[derive(Clone, Copy, Deserialize)]
struct Payment {
    amount: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Order {
    /// What is still to be paid.
    open: u64,
}

/// Why a request is refused.
#[derive(Debug)]
enum Refusal {
    Lock(LockError),
    TooMuch,
    /// The lock has had a later holder.
    Late,
}

impl From<LockError> for Refusal {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (code, text) = match self {
            Self::TooMuch => (StatusCode::UNPROCESSABLE_ENTITY, "that is more than is open"),
            Self::Lock(error) if error.kind() == ErrorKind::Busy => {
                (StatusCode::CONFLICT, "another payment of this order takes long")
            }
            Self::Lock(error) if !error.is_retryable() && error.kind() != ErrorKind::Lost => {
                (StatusCode::INTERNAL_SERVER_ERROR, "the service is not set up correctly")
            }
            Self::Lock(_) | Self::Late => (StatusCode::SERVICE_UNAVAILABLE, "try again"),
        };
        (code, text).into_response()
    }
}

/// Stands for a table with `UPDATE orders SET open = ?, token = ? WHERE id = ? AND token <= ?`.
#[derive(Default)]
struct Orders(Mutex<HashMap<u64, (Order, FencingToken)>>);

impl Orders {
    async fn read(&self, id: u64) -> Order {
        yield_now().await; // the way to the database
        self.rows().get(&id).map_or(Order { open: 100 }, |(order, _)| *order)
    }

    async fn write(&self, id: u64, order: Order, token: FencingToken) -> Result<(), Refusal> {
        yield_now().await;
        let mut rows = self.rows();
        if rows.get(&id).is_some_and(|(_, last)| token < *last) {
            return Err(Refusal::Late);
        }
        rows.insert(id, (order, token));
        Ok(())
    }

    fn rows(&self) -> MutexGuard<'_, HashMap<u64, (Order, FencingToken)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use axum::body::Body;
    use axum::http::Request;
    use tokio::task::JoinSet;
    use tower::ServiceExt;

    use super::*;

    /// A replica of the service, with a client of its own.
    async fn replica(url: &str, orders: &Arc<Orders>) -> Router {
        let locks = distlock::connect(url).await.unwrap();
        service(Shop { locks, orders: Arc::clone(orders) })
    }

    async fn pay(service: Router, id: u64, amount: u64) -> StatusCode {
        let request = Request::post(format!("/orders/{id}/payments"))
            .header("content-type", "application/json")
            .body(Body::from(format!("{{\"amount\": {amount}}}")))
            .unwrap();
        service.oneshot(request).await.unwrap().status()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_order_is_paid_more_than_once() {
        let orders = Arc::default();
        let replicas =
            [replica("memory:web-service", &orders).await, replica("memory:web-service", &orders).await];
        let mut payments = JoinSet::new();
        for number in 0..20 {
            payments.spawn(pay(replicas[number % 2].clone(), 42, 10));
        }
        let codes = payments.join_all().await;
        let count = |code| codes.iter().filter(|other| **other == code).count();
        assert_eq!((count(StatusCode::OK), count(StatusCode::UNPROCESSABLE_ENTITY)), (10, 10), "{codes:?}");
        assert_eq!(orders.read(42).await, Order { open: 0 });
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_does_not_wait_for_ever() {
        let url = "memory:web-service-busy";
        let service = replica(url, &Arc::default()).await;
        let locks = distlock::connect(url).await.unwrap();
        let _guard = locks.mutex("orders/42").unwrap().acquire().await.unwrap();
        assert_eq!(pay(service.clone(), 42, 10).await, StatusCode::CONFLICT);
        assert_eq!(pay(service, 43, 10).await, StatusCode::OK);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_that_was_paused_does_not_overwrite_a_later_one() {
        let url = "memory:web-service-late";
        let orders = Arc::default();
        let service = replica(url, &orders).await;
        let locks = distlock::connect(url).await.unwrap();
        let paused = locks.mutex("orders/42").unwrap().acquire().await.unwrap();
        let holder = locks.status("orders/42").await.unwrap().holders.remove(0);
        locks.break_holder("orders/42", &holder.id).await.unwrap();

        assert_eq!(pay(service, 42, 30).await, StatusCode::OK);
        let late = orders.write(42, Order { open: 90 }, paused.token().unwrap()).await;
        assert!(matches!(late, Err(Refusal::Late)));
        assert_eq!(orders.read(42).await, Order { open: 70 });
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn it_is_ready_when_its_locks_are() {
        let service = replica("memory:web-service-ready", &Arc::default()).await;
        let request = Request::get("/ready").body(Body::empty()).unwrap();
        assert_eq!(service.oneshot(request).await.unwrap().status(), StatusCode::OK);
    }
}
