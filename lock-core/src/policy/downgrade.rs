//! Lets a reader outlive the exclusive hold of its owner: what the exclusive hold has at the server becomes the reader's.

use std::pin::pin;
use std::sync::Arc;

use crate::policy::cleanup::{
    Cleanup, FirstAnswer, Outcome, Report, Sent, Successor, Task, report_when_due, time_to_stop,
};
use crate::policy::entry::Entry;
use crate::policy::hold::state::Phase;
use crate::policy::hold::{GrantedId, HoldCore};
use crate::policy::log;
use crate::runtime::engine::contained;
use crate::spi::{
    AcquireRequest, AnyLease, AttemptHandle, AttemptId, Downgraded, Grant, Mode, Released, Reported, Wait,
};
use crate::types::error::Operation;
use crate::types::loss::LossReason;

impl Entry {
    /// Ends an exclusive hold so that `reader` keeps what it has at the server.
    pub(super) fn downgrade(
        self: &Arc<Self>,
        exclusive: &Arc<HoldCore>,
        reader: &Arc<HoldCore>,
    ) -> Arc<Outcome> {
        reader.outlive(exclusive);
        self.client.renewer.register(reader);
        self.client.renewer.unregister(exclusive);
        let id = match reader.grant().id {
            GrantedId::Attempt(id) => id,
            _ => self.client.attempts.next(),
        };
        let request = self.shared_request(id, exclusive);
        // Its lease may be lost before the answer that grants it arrives.
        let reported: Arc<dyn Reported> = Arc::clone(reader) as Arc<dyn Reported>;
        request.handle.bind(Arc::downgrade(&reported));
        self.client.cleanup.downgrade(exclusive, reader, request, self)
    }

    fn shared_request(self: &Arc<Self>, id: AttemptId, exclusive: &HoldCore) -> Arc<AcquireRequest> {
        let options = exclusive.grant().options.as_ref().unwrap_or(&self.client.options);
        Arc::new(AcquireRequest {
            id,
            name: self.name.clone(),
            physical: self.physical.clone(),
            mode: Mode::Shared,
            options: Arc::clone(options),
            handle: AttemptHandle::for_waiters(Wait::Forever, self.as_waiters(), self.clock().now()),
        })
    }

    /// The server has granted the reader a lease of its own. Returns a lease that is not wanted any more.
    fn reader_has(
        self: &Arc<Self>,
        reader: &Arc<HoldCore>,
        request: &Arc<AcquireRequest>,
        grant: Grant<AnyLease>,
    ) -> Option<AnyLease> {
        let renewer = &self.client.renewer;
        renewer.unregister(reader);
        match self.granted_of(request, grant) {
            Ok(granted) => reader.has_own(granted),
            Err((lease, error)) => {
                self.logged().repeated("a reader cannot keep its lease", &error);
                reader.revoke(LossReason::Expired);
                return Some(lease);
            }
        }
        let group_end = renewer.register(reader);
        if let Some(reason) = group_end {
            reader.declare_lost(reason);
        }
        if reader.is_standing() {
            return None;
        }
        // It was released, or lost, before there was a lease to take.
        renewer.unregister(reader);
        reader.take_lease()
    }
}

/// An exclusive hold that has ended, and whose lease is to become the reader's.
struct Downgrading {
    entry: Arc<Entry>,
    lease: AnyLease,
    exclusive: Arc<HoldCore>,
    reader: Arc<HoldCore>,
    request: Arc<AcquireRequest>,
    first_answer: FirstAnswer,
    report: Option<Report>,
}

impl Cleanup {
    fn downgrade(
        &self,
        exclusive: &Arc<HoldCore>,
        reader: &Arc<HoldCore>,
        request: Arc<AcquireRequest>,
        entry: &Arc<Entry>,
    ) -> Arc<Outcome> {
        let now = entry.clock().now();
        let outcome = Arc::new(Outcome::new(Self::answers_by(exclusive, now)));
        let report = Report::new(exclusive, &outcome);
        let successor: Arc<Entry> = Arc::clone(entry);
        let first_answer = FirstAnswer::to(successor as Arc<dyn Successor>, now);
        match exclusive.take_lease() {
            Some(lease) => {
                let downgrading = Downgrading {
                    entry: Arc::clone(entry),
                    lease,
                    exclusive: Arc::clone(exclusive),
                    reader: Arc::clone(reader),
                    request,
                    first_answer,
                    report: Some(report),
                };
                let task = self.task(exclusive.gone_by());
                self.run(exclusive.name(), self.expect(), || downgrading.until_certain(task));
            }
            None => report.certain(Released::Clean, Sent::First),
        }
        outcome
    }
}

impl Downgrading {
    async fn until_certain(mut self, task: Task) {
        let Task { remote, mut pauses } = task;
        let mut sent = Sent::First;
        loop {
            let answer = {
                let downgrading = remote.backend.downgrade(&self.lease, &self.request);
                let downgrading = pin!(contained(Operation::Downgrade, downgrading));
                let answer = pin!(self.first_answer.awaiting(&remote.clock, downgrading));
                report_when_due(&mut self.report, &remote.clock, answer).await
            };
            match answer {
                Ok(Downgraded::Shared(grant)) => {
                    return self.shared(grant, Task { remote, pauses }).await;
                }
                Ok(Downgraded::WasLost(reason)) => {
                    if let Some(report) = self.report.take() {
                        report.certain(Released::WasLost(reason), sent);
                    }
                    return self.reader.declare_lost(reason);
                }
                Err(error) => {
                    log::Lock { name: self.exclusive.name(), server: self.exclusive.server() }
                        .repeated("a downgrade failed", &error);
                    if !error.is_retryable() {
                        self.reader.revoke(LossReason::Expired);
                    }
                    self.report = self.report.take().and_then(|report| report.failed(error));
                }
            }
            self.first_answer.answered();
            sent = Sent::Again;
            let pause = report_when_due(&mut self.report, &remote.clock, pin!(pauses.next())).await;
            if pause.is_none() {
                return;
            }
            if !self.reader.is_standing() {
                return self.undo(Task { remote, pauses }).await;
            }
        }
    }

    async fn shared(self, grant: Grant<AnyLease>, task: Task) {
        let Self { entry, reader, request, mut first_answer, report, lease, .. } = self;
        drop(lease);
        // First, so that the owner finds the reader's own token when the writer has ended.
        let unwanted = entry.reader_has(&reader, &request, grant);
        if let Some(report) = report {
            report.certain(Released::Clean, Sent::First);
        }
        match unwanted {
            Some(unwanted) => {
                wait_for_the_holder(&reader, &task).await;
                task.release_until_certain(&unwanted, &reader, &mut first_answer).await;
            }
            None => first_answer.answered(),
        }
    }

    /// The reader has ended before the server has answered, so that neither lease is wanted.
    async fn undo(mut self, mut task: Task) {
        wait_for_the_holder(&self.reader, &task).await;
        loop {
            let cancelling = contained(Operation::Cancel, task.remote.backend.cancel(&self.request));
            if cancelling.await.is_ok() {
                break;
            }
            if task.pauses.next().await.is_none() {
                return;
            }
        }
        task.release_until_certain(&self.lease, &self.reader, &mut self.first_answer).await;
    }
}

/// Waits until a holder that has learned of its loss has stopped.
async fn wait_for_the_holder(reader: &HoldCore, task: &Task) {
    if matches!(reader.phase(), Phase::Lost(_)) {
        let clock = &task.remote.clock;
        clock.sleep_until(clock.now().plus(time_to_stop(reader.abort_margin()))).await;
    }
}

impl Task {
    async fn release_until_certain(
        mut self,
        lease: &AnyLease,
        hold: &HoldCore,
        first_answer: &mut FirstAnswer,
    ) {
        loop {
            let answer = {
                let releasing = pin!(contained(Operation::Release, self.remote.backend.release(lease)));
                first_answer.awaiting(&self.remote.clock, releasing).await
            };
            match answer {
                Ok(_) => return first_answer.answered(),
                Err(error) => {
                    log::Lock { name: hold.name(), server: hold.server() }
                        .repeated("a release failed", &error);
                }
            }
            first_answer.answered();
            if self.pauses.next().await.is_none() {
                return;
            }
        }
    }
}
