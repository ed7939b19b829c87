//! A request whose trace shows how long it waited for a lock.
//!
//! ```sh
//! cargo run --example traces
//! ```
//!
//! It prints its spans. A service exports them instead, with `opentelemetry-otlp`, and needs no other change.

use std::time::Duration;

use distlock::{LockClient, LockError};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    run(Printed).await
}

async fn run(exporter: impl SpanExporter + 'static) -> Result<(), Failure> {
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter).build();
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
    let spans = spans.with_location(false).with_threads(false).with_tracked_inactivity(false);
    let subscriber = tracing_subscriber::registry().with(LevelFilter::INFO).with(spans);
    tracing::subscriber::set_global_default(subscriber)?;

    let locks = distlock::connect("memory:").await?;
    let held = locks.mutex("orders/42")?.acquire().await?;
    let request = tokio::spawn(pay(locks.clone(), 42));
    tokio::time::sleep(Duration::from_millis(200)).await;
    held.release().await?;
    Ok(request.await??)
}

#[tracing::instrument(skip(locks))]
async fn pay(locks: LockClient, order: u32) -> Result<(), LockError> {
    let guard = locks.mutex(format!("orders/{order}"))?.acquire().await?;
    tokio::time::sleep(Duration::from_millis(50)).await; // the payment
    guard.release().await
}

/// Prints each span when it ends, and its parent.
#[derive(Debug)]
struct Printed;

impl SpanExporter for Printed {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        for span in batch {
            let took = span.end_time.duration_since(span.start_time).unwrap_or_default();
            let fields = span.attributes.iter().map(|field| format!(" {}={}", field.key, field.value));
            let (own, parent) = (span.span_context.span_id(), span.parent_span_id);
            println!("{:8} {took:>9.1?} {own} in {parent}{}", span.name, fields.collect::<String>());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Debug, Clone, Default)]
    struct Seen(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Seen {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().unwrap().extend(batch);
            Ok(())
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_trace_of_the_request_has_its_wait() {
        let seen = Seen::default();
        run(seen.clone()).await.unwrap();
        let spans = seen.0.lock().unwrap();
        let pay = spans.iter().find(|span| span.name == "pay").unwrap();
        let within: Vec<_> =
            spans.iter().filter(|span| span.parent_span_id == pay.span_context.span_id()).collect();
        assert_eq!(within.iter().map(|span| &*span.name).collect::<Vec<_>>(), ["acquire", "release"]);
        let fields: Vec<_> = within[0].attributes.iter().map(|field| field.key.as_str()).collect();
        assert!(fields.contains(&"lock") && fields.contains(&"waited"), "{fields:?}");
    }
}
