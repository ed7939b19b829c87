//! The contender distlock, on any server that its URL can name.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock::status::Mode;
use distlock::{DistributedLock, LockClient, LockGuard};

use crate::contender::{Client, Connecting, Contender, Driving, Family, Held, Lock, Target, Waits};
use crate::failure::{Context, Outcome};

pub(crate) const OWN: &str = "distlock-own";
/// Contenders whose names end so pass a lock on without the server, the others do not.
pub(crate) const HANDING_OVER: &str = "-local";

pub(crate) const CONTENDERS: [Contender; 4] = [
    Contender {
        id: "distlock-caller",
        title: "distlock, engine=caller",
        family: Family::Distlock,
        driving: Driving::Caller,
        waits: Waits::ForTheLock,
        connect: |target| connect(target, "engine=caller"),
    },
    Contender {
        id: OWN,
        title: "distlock, engine=own (default)",
        family: Family::Distlock,
        driving: Driving::OtherThread,
        waits: Waits::ForTheLock,
        connect: |target| connect(target, "engine=own"),
    },
    Contender {
        id: "distlock-caller-local",
        title: "distlock, engine=caller, local_handoff",
        family: Family::Distlock,
        driving: Driving::Caller,
        waits: Waits::WithinTheClient,
        connect: |target| connect(target, "engine=caller&local_handoff=100/10ms"),
    },
    Contender {
        id: "distlock-own-local",
        title: "distlock, engine=own, local_handoff",
        family: Family::Distlock,
        driving: Driving::OtherThread,
        waits: Waits::WithinTheClient,
        connect: |target| connect(target, "engine=own&local_handoff=100/10ms"),
    },
];

pub(crate) fn connect(target: Target, options: &'static str) -> Connecting<Box<dyn Client>> {
    Box::pin(async move {
        let separator = if target.url.contains('?') { '&' } else { '?' };
        let lease = humantime::format_duration(target.lease).to_string().replace(' ', "");
        let lease = target.lease_option.map_or_else(String::new, |option| format!("&{option}={lease}"));
        let url = format!("{}{separator}{options}{lease}", target.url);
        let client = distlock::connect(url).await.context("distlock")?;
        Ok(Box::new(Distlock(client)) as Box<dyn Client>)
    })
}

const CLOSE_WITHIN: Duration = Duration::from_secs(2);

struct Distlock(LockClient);

#[async_trait]
impl Client for Distlock {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        Ok(Box::new(Named(self.0.mutex(name).context("distlock")?)))
    }

    fn share(&self, name: &str, mode: Mode) -> Outcome<Option<Box<dyn Lock>>> {
        if self.0.capabilities().refusal(mode).is_some() {
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
