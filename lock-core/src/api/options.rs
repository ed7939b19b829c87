//! The options of one lock, in place of those of its client.

use std::sync::Arc;
use std::time::Duration;

use crate::api::builder::check_label;
use crate::api::listener::LockListener;
use crate::api::mailbox::{Mailbox, Reader};
use crate::api::publisher::Topic;
use crate::api::self_wait;
use crate::policy::acquire::Acquisition;
use crate::policy::hold::EventSink;
use crate::spi::{HoldOptions, Mode, Validity};
use crate::types::{Capabilities, ErrorKind, Leasing, LockError, Operation, setters};

#[cfg(doc)]
use crate::api::{builder::ClientBuilder, client::LockClient, lock::DistributedLock};
#[cfg(doc)]
use crate::policy::hold::Hold;

/// The options of the holds of one lock, for [`LockClient::mutex_with`], [`rw_lock_with`](LockClient::rw_lock_with) and
/// [`semaphore_with`](LockClient::semaphore_with). What is not set is as for all locks of the client.
///
/// Locks of one name with different options are the same lock: they exclude each other, and an owner that enters again keeps the
/// options of its first entry. So an acquisition with options of its own is one more `mutex_with`, which costs nothing.
/// Elections and [`once`](LockClient::once) have those of the client; [`MultiLock`](crate::MultiLock) joins locks that have their own.
///
/// ```
/// # use lock_core::LockOptions;
/// # use std::time::Duration;
/// # lock_memory::example(async |locks| {
/// let options = LockOptions::new().max_hold(Duration::from_secs(1800)).label("nightly, started by hand");
/// let guard = locks.mutex_with("nightly", options)?.acquire().await?;
/// assert!(guard.hold().remaining().is_some_and(|left| left <= Duration::from_secs(1800)));
/// guard.release().await?;
/// # Ok(()) });
/// ```
#[derive(Debug, Clone, Default)]
pub struct LockOptions {
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    at_least: Option<Duration>,
    abort_margin: Option<Duration>,
    label: Option<String>,
    listener: Option<Arc<Mailbox>>,
    finishes_body: bool,
}

impl LockOptions {
    /// Creates options that change nothing.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// # use lock_core::LockOptions;
    /// let orders = locks.mutex_with("orders/42", LockOptions::new())?; // the same as `mutex`
    /// # Ok(()) });
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Sets how long the server keeps the lock without a renewal. A shorter lease frees the lock of a dead holder sooner, and
        /// costs more renewals.
        ///
        /// Only some backends [keep a lease for each hold](Capabilities::leasing). On the others, the lease belongs to a session or
        /// connection of the client, and `mutex_with` fails.
        ///
        /// ```
        /// # use lock_core::LockOptions;
        /// # use std::time::Duration;
        /// # lock_memory::example(async |locks| {
        /// let options = LockOptions::new().lease(Duration::from_secs(300));
        /// let guard = locks.mutex_with("nightly", options)?.acquire().await?;
        /// assert!(guard.hold().remaining() > Some(Duration::from_secs(200)));
        /// # Ok(()) });
        /// ```
        lease(lease: Duration) { lease = Some(lease) }

        /// Sets the longest time that the lock may be held, like [`ClientBuilder::max_hold`].
        ///
        /// ```
        /// # use lock_core::{LockOptions, LossReason};
        /// # use std::time::Duration;
        /// # lock_memory::example(async |locks| {
        /// let brief = locks.mutex_with("orders/42", LockOptions::new().max_hold(Duration::from_millis(20)))?;
        /// let guard = brief.acquire().await?;
        /// assert_eq!(guard.lost().await, Some(LossReason::Expired)); // after 20 ms
        /// # Ok(()) });
        /// ```
        #[doc(alias = "at_most")]
        max_hold(longest: Duration) { max_hold = Some(longest) }

        /// Keeps other holders out for at least this long after the grant, by the server's clock, even if the lock is released or its
        /// holder dies before: for jobs that several machines start at the same time, by clocks that differ.
        ///
        /// It binds **acquisitions that set `at_least` themselves**, so give all users of the name the same options. Others get the
        /// lock as soon as it is free, and so does a status see it. While the pause lasts, a try is refused, and a wait goes on; who of
        /// those that wait is first afterwards is not defined. If [`LockClient::forget`] ends it, a wait learns of that within five
        /// seconds. An acquisition costs one more round trip. Only a mutex can have it. [`Duration::MAX`] keeps others out for ever.
        ///
        /// The pause is noted before the caller has the lock. **If the server's answer to that is lost, or the caller leaves at that
        /// moment, the pause passes without a hold**: too few runs, never too many.
        ///
        /// ```
        /// # use lock_core::LockOptions;
        /// # use std::time::Duration;
        /// # lock_memory::example(async |locks| {
        /// let job = locks.mutex_with("nightly", LockOptions::new().at_least(Duration::from_secs(50)))?;
        /// job.acquire().await?.release().await?;
        /// assert!(job.try_acquire().await?.is_none()); // for 50 s
        /// # Ok(()) });
        /// ```
        at_least(shortest: Duration) { at_least = Some(shortest) }

        /// Sets how long the holder needs to stop after it learns of a loss, like [`ClientBuilder::abort_margin`].
        ///
        /// ```
        /// # use lock_core::LockOptions;
        /// # use std::time::Duration;
        /// # lock_memory::example(async |locks| {
        /// let careful = LockOptions::new().abort_margin(Duration::from_secs(5));
        /// let guard = locks.mutex_with("orders/42", careful)?.acquire().await?;
        /// # Ok(()) });
        /// ```
        abort_margin(margin: Duration) { abort_margin = Some(margin) }

        /// Sets the name that is shown to people who inspect the lock, like [`ClientBuilder::label`].
        ///
        /// ```
        /// # use lock_core::LockOptions;
        /// # lock_memory::example(async |locks| {
        /// let by_hand = locks.mutex_with("nightly", LockOptions::new().label("started by hand"))?;
        /// let _guard = by_hand.acquire().await?;
        /// let status = locks.status("nightly").await?;
        /// assert_eq!(status.holders[0].label.as_deref(), Some("started by hand"));
        /// # Ok(()) });
        /// ```
        label(label: impl Into<String>) { label = Some(label.into()) }

        /// Sets a listener for the events of the holds that are acquired with these options, and of no others. It stays as long as
        /// any of these holds, whatever becomes of the lock that was used to acquire it. It does not learn of the end of the client.
        ///
        /// ```
        /// # use lock_core::{Hold, LockOptions, LossReason};
        /// # use std::sync::Arc;
        /// # lock_memory::example(async |locks| {
        /// let options = LockOptions::new().listener(Arc::new(|hold: &Hold, reason: &LossReason| {
        ///     eprintln!("{} is lost: {reason}", hold.name());
        /// }));
        /// let guard = locks.mutex_with("orders/42", options)?.acquire().await?;
        /// # Ok(()) });
        /// ```
        listener(listener: Arc<dyn LockListener>) { listener = Some(Mailbox::new(Topic::Client, Reader::Listener(listener))) }

        /// Lets the body of [`with_lock`](DistributedLock#method.with_lock) run to its end when the lock is lost, instead of dropping
        /// it at its next await: for work that must not stop half-way. The result is the loss all the same, and **another holder may
        /// work at the same time** until the body ends: it has to check [`Hold::is_valid`], or to send its fencing token.
        ///
        /// ```
        /// # use lock_core::{ErrorKind, LockError, LockOptions};
        /// # lock_memory::example(async |locks| {
        /// let whole = locks.mutex_with("orders/42", LockOptions::new().finish_body_on_loss())?;
        /// let mut finished = false;
        /// let result = whole.with_lock(async |hold| {
        ///     locks.break_holder("orders/42", &hold.id()).await?;
        ///     hold.lost().await;
        ///     finished = true;
        ///     Ok::<_, LockError>(())
        /// });
        /// assert_eq!(result.await.unwrap_err().kind(), ErrorKind::Lost);
        /// assert!(finished);
        /// # Ok(()) });
        /// ```
        finish_body_on_loss() { finishes_body = true }
    }

    /// What a lock with these options asks for, at a client whose locks ask for `client`.
    pub(crate) fn acquisition(
        self,
        mode: Mode,
        client: &Arc<HoldOptions>,
        capabilities: &Capabilities,
    ) -> Result<Acquisition, LockError> {
        let abort_margin = self.abort_margin.unwrap_or(client.abort_margin);
        if let Some(lease) = self.lease {
            check_lease(lease, capabilities)?;
            Validity::new(lease, abort_margin)?;
        }
        check_max_hold(self.max_hold)?;
        let at_least = self.at_least.filter(|shortest| !shortest.is_zero());
        if at_least.is_some() && mode != Mode::Exclusive {
            return Err(LockError::new(ErrorKind::InvalidOption, Operation::Configure)
                .because("at_least requires an exclusive lock")
                .remedy("leave at_least out, or use a mutex"));
        }
        if at_least.is_some() {
            check_remembering(capabilities)?;
        }
        let mut holder = Arc::clone(&client.holder);
        if self.label.is_some() {
            Arc::make_mut(&mut holder).label = self.label;
            check_label(&holder)?;
        }
        let hold_options = HoldOptions {
            holder,
            lease: self.lease,
            abort_margin,
            max_hold: self.max_hold.or(client.max_hold),
            at_least,
            finishes_body: self.finishes_body,
            local_handoff: client.local_handoff,
            is_term: false,
        };
        let events = self.listener.map(|mailbox| Arc::new(mailbox) as Arc<dyn EventSink>);
        let options = if hold_options == **client { Arc::clone(client) } else { Arc::new(hold_options) };
        Ok(Acquisition { mode, options, events, around: self_wait::around })
    }
}

fn check_lease(lease: Duration, capabilities: &Capabilities) -> Result<(), LockError> {
    let Leasing::PerHold { shortest, longest } = capabilities.leasing else {
        return Err(LockError::new(ErrorKind::Unsupported, Operation::Configure)
            .because(format!(
                "the backend {:?} has one lease for all locks of a client",
                capabilities.backend
            ))
            .remedy("set the lease of the client, or use another client for this lock"));
    };
    let length = humantime::format_duration;
    let (cause, remedy) = if lease < shortest {
        (format!("shorter than {}", length(shortest)), "make the lease longer")
    } else if lease > longest {
        (format!("longer than {}", length(longest)), "make the lease shorter: a living holder renews it")
    } else {
        return Ok(());
    };
    Err(LockError::new(ErrorKind::InvalidOption, Operation::Configure)
        .because(format!("a lease of {} is {cause}", length(lease)))
        .remedy(remedy))
}

pub(super) fn check_max_hold(max_hold: Option<Duration>) -> Result<(), LockError> {
    if max_hold != Some(Duration::ZERO) {
        return Ok(());
    }
    Err(LockError::new(ErrorKind::InvalidOption, Operation::Configure)
        .because("max_hold is zero, so that every hold would be over as soon as it begins")
        .remedy("give the greatest length of a hold, or leave max_hold out for holds without a bound"))
}

pub(super) fn check_remembering(capabilities: &Capabilities) -> Result<(), LockError> {
    if capabilities.remembering {
        return Ok(());
    }
    Err(LockError::new(ErrorKind::Unsupported, Operation::Remember)
        .because(format!("the backend {:?} cannot remember anything beyond a hold", capabilities.backend))
        .remedy("name a database in the URL, where the backend keeps a table in one; or choose a backend that remembers"))
}
