//! A command that runs under the lock: what happens to it until it has ended.

use std::future::pending;
use std::time::Duration;

use distlock::{Clock, Hold, LossReason, Moment};
use nix::sys::signal::Signal;

use crate::arguments::OnLost;
use crate::child::{Change, Child, Sent};
use crate::contact::Contact;
use crate::event::Event;
use crate::exit::{self, Ending, Failure};
use crate::job::{AfterStop, Job};
use crate::report::Report;
use crate::signals::Signals;

/// Runs while the machine sleeps, as leases do.
const CLOCK: Clock = Clock::system();

/// A command that runs under the lock.
pub(crate) struct Run<'a> {
    pub(crate) child: Child,
    pub(crate) job: Job,
    pub(crate) signals: &'a mut Signals,
    pub(crate) contact: Contact,
    pub(crate) hold: Hold,
    pub(crate) name: &'a str,
    pub(crate) on_lost: OnLost,
    pub(crate) grace: Duration,
    pub(crate) report: &'a Report,
    pub(crate) loss: Loss,
}

/// What has been done about a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// There is none.
    None,
    /// It was reported and the command runs on.
    Ignored,
    /// The command and all that it has started were told to end, and are killed at this moment.
    Terminating(Moment),
    /// They were killed.
    Killed(Moment),
}

/// What the run waits for.
enum Happening {
    Lost(LossReason),
    GraceOver,
    Child(Change),
    Signal(Signal),
    Contact(Event<'static>),
}

impl Run<'_> {
    pub(crate) async fn until_the_end(mut self) -> Result<Ending, Failure> {
        loop {
            match self.next().await? {
                Happening::Lost(reason) => self.lost(reason),
                Happening::GraceOver => self.kill(),
                Happening::Signal(signal) => self.pass_on(signal),
                Happening::Contact(event) => self.report.event(self.name, &event),
                Happening::Child(Change::Stopped(signal)) => self.stopped(signal),
                Happening::Child(Change::Exited(code)) => {
                    self.report.event(self.name, &Event::Exited { code });
                    return Ok(self.ended(Ending::Code(code)).await);
                }
                Happening::Child(Change::Killed(signal)) => {
                    self.report.event(self.name, &Event::Killed { signal });
                    return Ok(self.ended(Ending::Signal(signal)).await);
                }
            }
        }
    }

    async fn next(&mut self) -> Result<Happening, Failure> {
        let (state, hold) = (self.loss, &self.hold);
        let lost = async {
            match state {
                Loss::None => hold.lost().await,
                _ => None,
            }
        };
        let grace_over = async {
            match state {
                Loss::Terminating(kill_at) => CLOCK.sleep_until(kill_at).await,
                _ => pending().await,
            }
        };
        Ok(tokio::select! {
            biased;
            Some(reason) = lost => Happening::Lost(reason),
            () = grace_over => Happening::GraceOver,
            change = self.child.change() => {
                Happening::Child(change.map_err(|error| Failure::of_system("wait for the command", error))?)
            }
            signal = self.signals.next() => Happening::Signal(signal),
            event = self.contact.change() => Happening::Contact(event),
        })
    }

    fn lost(&mut self, reason: LossReason) {
        if self.on_lost == OnLost::Ignore {
            self.loss = Loss::Ignored;
            return self.report.event(self.name, &Event::Lost { reason });
        }
        // Before anything else: others have the lock soon.
        self.loss = Loss::Terminating(self.kill_at());
        let sent = self.child.signal_all(Signal::SIGTERM);
        // A stopped process receives nothing but SIGKILL until it is continued.
        self.child.signal_all(Signal::SIGCONT);
        self.report.event(self.name, &Event::Lost { reason });
        self.report_sent(Signal::SIGTERM, sent);
    }

    /// When the grace is over. It begins when the lock is lost, not when that is noticed: others have the lock when it is over.
    fn kill_at(&self) -> Moment {
        CLOCK.now().plus(self.grace).minus(self.hold.overdue())
    }

    fn kill(&mut self) {
        self.loss = Loss::Killed(CLOCK.now());
        let sent = self.child.signal_all(Signal::SIGKILL);
        self.report_sent(Signal::SIGKILL, sent);
    }

    fn report_sent(&self, signal: Signal, sent: Sent) {
        if sent.reached > 0 || sent.refused.is_empty() {
            self.report.event(self.name, &Event::Terminating { signal });
        }
        self.report_refused(signal, sent);
    }

    fn report_refused(&self, signal: Signal, sent: Sent) {
        if !sent.refused.is_empty() {
            self.report.event(self.name, &Event::Refused { signal, pids: sent.refused });
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        match signal {
            Signal::SIGTSTP => self.job.request_stop(&self.child),
            // Otherwise it tells that we were continued, with which the child has been continued already; by now it may have
            // been stopped again.
            Signal::SIGCONT if !self.job.has_left_child_stopped() => {}
            Signal::SIGCONT => self.child.signal_group(signal),
            // These mean something to the program itself; its helpers would be ended by them.
            Signal::SIGUSR1 | Signal::SIGUSR2 => self.child.signal(signal),
            // Those that end the program must not leave its helpers behind, running without the lock.
            _ => {
                let sent = self.child.signal_all(signal);
                self.report_refused(signal, sent);
            }
        }
    }

    fn stopped(&mut self, signal: Signal) {
        // We stop with the child, and nobody may have renewed the lease meanwhile.
        let after = self.job.child_stopped(&mut self.child, signal);
        let lost_meanwhile = self.on_lost == OnLost::Terminate && !self.hold.is_valid();
        if after == AfterStop::Continue && !lost_meanwhile {
            self.child.signal_group(Signal::SIGCONT);
        }
    }

    /// The child has ended. After a loss, whatever else it has started has to as well.
    async fn ended(mut self, ending: Ending) -> Ending {
        let reach = self.job.child_ended(&self.child);
        let by_keyboard = self.child.may_have_been_interrupted_with_its_group();
        match self.loss {
            Loss::Terminating(kill_at) | Loss::Killed(kill_at) => {
                self.end_rest(kill_at).await;
                Ending::Code(exit::LOST)
            }
            Loss::None | Loss::Ignored => reach
                .filter(|_| by_keyboard && ending == Ending::Signal(Signal::SIGINT))
                .map_or(ending, Ending::Interrupted),
        }
    }

    async fn end_rest(&mut self, kill_at: Moment) {
        loop {
            let signal = tokio::select! {
                sent = self.child.end_rest(kill_at) => return self.report_refused(Signal::SIGKILL, sent),
                signal = self.signals.next() => signal,
            };
            self.pass_on(signal);
        }
    }
}
