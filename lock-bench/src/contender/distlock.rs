//! The contender distlock, on any server that its URL can name.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock::status::Mode;
use distlock::{DistributedLock, LockClient, LockGuard};

use super::{Client, Connecting, Driving, Held, Lock, Target};
use crate::failure::{Context, Outcome};

/// The engine on the caller's runtime. `lease_option` is the name of the lease option in the URL.
pub(crate) fn caller(target: Target, lease_option: &'static str) -> Connecting<Box<dyn Client>> {
    Box::pin(connect(target, Driving::Caller, Some(lease_option), ""))
}

/// The engine on a thread of its own, which is the default.
pub(crate) fn own(target: Target, lease_option: &'static str) -> Connecting<Box<dyn Client>> {
    Box::pin(connect(target, Driving::OtherThread, Some(lease_option), ""))
}

/// With the option that tasks of the client pass a lock on without the server.
pub(crate) fn handing_over(
    target: Target,
    driving: Driving,
    lease_option: Option<&'static str>,
) -> Connecting<Box<dyn Client>> {
    Box::pin(connect(target, driving, lease_option, "&local_handoff=100/10ms"))
}

/// On a backend without leases.
pub(crate) fn without_lease(target: Target, driving: Driving) -> Connecting<Box<dyn Client>> {
    Box::pin(connect(target, driving, None, ""))
}

async fn connect(
    target: Target,
    driving: Driving,
    lease_option: Option<&str>,
    more: &str,
) -> Outcome<Box<dyn Client>> {
    let engine = match driving {
        Driving::Caller => "caller",
        Driving::OtherThread => "own",
    };
    let separator = if target.url.contains('?') { '&' } else { '?' };
    let lease = humantime::format_duration(target.lease).to_string().replace(' ', "");
    let lease = lease_option.map_or_else(String::new, |option| format!("&{option}={lease}"));
    let url = format!("{}{separator}engine={engine}{lease}{more}", target.url);
    let client = distlock::connect(url).await.context("distlock")?;
    Ok(Box::new(Distlock(client)))
}

const CLOSE_WITHIN: Duration = Duration::from_secs(2);

struct Distlock(LockClient);

#[async_trait]
impl Client for Distlock {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        Ok(Box::new(Named(self.0.mutex(name).context("distlock")?)))
    }

    fn share(&self, name: &str, mode: Mode) -> Outcome<Option<Box<dyn Lock>>> {
        if self.0.capabilities().modes.refusal(mode).is_some() {
            return Ok(None);
        }
        let lock = match mode {
            Mode::Shared => self.0.rw_lock(name).context("distlock")?.read(),
            Mode::Permits { take, of } => {
                let semaphore = self.0.semaphore(name, of.get()).context("distlock")?;
                semaphore.permits(take.get()).context("distlock")?
            }
            _ => return self.lock(name).map(Some),
        };
        Ok(Some(Box::new(Named(lock))))
    }

    async fn close(self: Box<Self>) {
        // What is still held or queued is given up with the client: the measurement is over.
        let _ = self.0.close(CLOSE_WITHIN).await;
    }
}

struct Named(Arc<dyn DistributedLock>);

#[async_trait]
impl Lock for Named {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        let guard = self.0.acquire().await.context("distlock")?;
        Ok(Box::new(Guarded(guard)))
    }
}

struct Guarded(LockGuard);

#[async_trait]
impl Held for Guarded {
    async fn release(self: Box<Self>) -> Outcome<()> {
        self.0.release().await.context("distlock")
    }
}
