//! Supervises a command that runs under the lock, until the command has ended.

use std::future::pending;
use std::time::Duration;

use distlock::spi::{Clock, Moment};
use distlock::{Hold, LossReason};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::time::sleep;

use crate::arguments::OnLost;
use crate::child::{Change, Child, INTERVAL, Sent};
use crate::contact::Contact;
use crate::event::Event;
use crate::exit::{self, Ending, Failure};
use crate::job::{AfterStop, Following, Job};
use crate::named::Named;
use crate::report::Report;
use crate::signals::Signals;

/// This clock also runs while the machine sleeps, as leases do.
const CLOCK: Clock = Clock::system();

/// How long killed processes may take to end.
const DYING: Duration = Duration::from_secs(5);

/// A command that runs under the lock.
pub(crate) struct Run<'a> {
    pub(crate) child: Child,
    pub(crate) job: Job,
    pub(crate) signals: &'a mut Signals,
    pub(crate) contact: Contact,
    pub(crate) hold: Hold,
    pub(crate) named: Named<'a>,
    pub(crate) on_lost: OnLost,
    pub(crate) grace: Duration,
    pub(crate) report: &'a Report,
    pub(crate) loss: Loss,
    /// Whether a signal has asked the command to end.
    pub(crate) is_asked_to_end: bool,
}

/// How a run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The command ended by itself, or kept running after the loss.
    Ended(Ending),
    /// The lock was lost, and everything that the command had started has ended.
    Stopped,
    /// The lock was lost, and the command must not be started again: a signal asked distlock to end as well, or something that
    /// the command had started is left.
    StoppedForGood,
}

impl End {
    /// How distlock ends, if it does.
    pub(crate) fn ending(self) -> Ending {
        match self {
            Self::Ended(ending) => ending,
            Self::Stopped | Self::StoppedForGood => Ending::Code(exit::LOST),
        }
    }
}

/// What has been done about a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// There is no loss.
    None,
    /// The loss was reported, and the command keeps running.
    Ignored,
    /// The command and its descendants have received SIGTERM, and get SIGKILL at this moment.
    Terminating(Moment),
    /// They are being killed, until this moment.
    Killing(Moment),
    /// The processes that are left cannot be killed.
    Killed,
}

/// What the run waits for.
enum Happening {
    Lost(LossReason),
    KillDue,
    Child(Change),
    Signal(Signal),
    Contact(Event<'static>),
}

impl Run<'_> {
    pub(crate) async fn until_the_end(mut self) -> Result<End, Failure> {
        loop {
            let next = match self.next().await {
                Ok(next) => next,
                // When the command ends would stay unknown, and nothing of it may run on after the release.
                Err(failure) => {
                    self.kill();
                    self.end_rest().await;
                    let _ = self.job.child_ended(&self.child);
                    return Err(failure);
                }
            };
            match next {
                Happening::Lost(reason) => self.lost(reason),
                Happening::KillDue => self.kill(),
                Happening::Signal(signal) => self.pass_on(signal),
                Happening::Contact(event) => self.report.event(self.named, &event),
                Happening::Child(Change::Stopped(signal)) => self.stopped(signal),
                Happening::Child(Change::Exited(code)) => {
                    self.report.event(self.named, &Event::Exited { code });
                    return Ok(self.ended(Ending::Code(code)).await);
                }
                Happening::Child(Change::Killed(signal)) => {
                    self.report.event(self.named, &Event::Killed { signal });
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
        Ok(tokio::select! {
            biased;
            Some(reason) = lost => Happening::Lost(reason),
            () = kill_due(state) => Happening::KillDue,
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
            return self.report.event(self.named, &Event::Lost { reason });
        }
        // Before anything else, because other clients soon have the lock.
        self.loss = Loss::Terminating(self.kill_at());
        let sent = self.child.signal_all(Signal::SIGTERM);
        // A stopped process receives only SIGKILL until it is continued.
        self.child.signal_all(Signal::SIGCONT);
        self.report.event(self.named, &Event::Lost { reason });
        self.report_sent(Signal::SIGTERM, sent);
    }

    /// When the grace is over. It begins when the lock is lost, not when the loss is noticed: at its end other clients have the
    /// lock.
    fn kill_at(&self) -> Moment {
        CLOCK.now().plus(self.grace).minus(self.hold.overdue())
    }

    /// Kills all processes that are left. Call this repeatedly: a process that is being killed may have started another.
    fn kill(&mut self) {
        let now = CLOCK.now();
        let sent = self.child.signal_all(Signal::SIGKILL);
        match self.loss {
            Loss::Killing(until) if now < until => {}
            Loss::Killing(_) => {
                self.loss = Loss::Killed;
                if !sent.reached.is_empty() {
                    self.report.event(self.named, &Event::Survived { pids: sent.reached });
                }
            }
            _ => {
                self.loss = Loss::Killing(now.plus(DYING));
                self.report_sent(Signal::SIGKILL, sent);
            }
        }
    }

    fn report_sent(&self, signal: Signal, sent: Sent) {
        if !sent.reached.is_empty() || sent.has_reached_group && sent.refused.is_empty() {
            self.report.event(self.named, &Event::Terminating { signal });
        }
        self.report_refused(signal, sent.refused);
    }

    fn report_refused(&self, signal: Signal, pids: Vec<Pid>) {
        if !pids.is_empty() {
            self.report.event(self.named, &Event::Refused { signal, pids });
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        match signal {
            Signal::SIGTSTP if self.following() == Following::Nothing => {}
            Signal::SIGTSTP => self.job.request_stop(&self.child),
            // The child was asked to stop, or has stopped, and distlock has not.
            Signal::SIGCONT if self.job.take_back_stop() => self.child.signal_group(signal),
            // Otherwise the signal means that distlock was continued, and the child with it; the child may be stopped again by
            // now.
            Signal::SIGCONT if !self.job.has_left_child_stopped() => {}
            Signal::SIGCONT => self.child.signal_group(signal),
            // These mean something to the program itself, and would end its helpers.
            Signal::SIGUSR1 | Signal::SIGUSR2 => self.child.signal(signal),
            // Signals that end the program must not leave its helpers behind, running without the lock.
            _ => {
                // To many a program that keeps running SIGHUP means something else.
                self.is_asked_to_end |= signal != Signal::SIGHUP || self.loss != Loss::None;
                let sent = self.child.signal_all(signal);
                self.report_refused(signal, sent.refused);
            }
        }
    }

    fn stopped(&mut self, signal: Signal) {
        if self.is_to_end() {
            return;
        }
        let following = self.following();
        let after = self.job.child_stopped(&mut self.child, signal, following);
        // distlock stopped with the child, and may not have renewed the lease meanwhile.
        if self.is_to_end() {
            return;
        }
        self.child.continue_rest();
        if after == AfterStop::Continue {
            self.child.signal_group(Signal::SIGCONT);
        }
    }

    fn following(&self) -> Following {
        let has_lease = self.hold.remaining().is_some();
        match self.loss {
            Loss::Terminating(_) | Loss::Killing(_) => Following::Nothing,
            Loss::None if has_lease && self.on_lost == OnLost::Terminate => Following::Everything,
            // Without a lease the lock stays held while distlock is stopped.
            Loss::None | Loss::Ignored | Loss::Killed => Following::Us,
        }
    }

    /// Whether a loss is about to be reported: then all stopped processes are continued, to end.
    fn is_to_end(&self) -> bool {
        self.loss == Loss::None && self.on_lost == OnLost::Terminate && !self.hold.is_valid()
    }

    /// After the end of the child: if the lock is lost, its descendants have to end too.
    async fn ended(mut self, ending: Ending) -> End {
        let reach = self.job.child_ended(&self.child);
        let by_keyboard = self.child.may_have_been_interrupted_with_its_group();
        let interrupted = reach.filter(|_| by_keyboard && ending == Ending::Signal(Signal::SIGINT as i32));
        match self.loss {
            Loss::None | Loss::Ignored => End::Ended(interrupted.map_or(ending, Ending::Interrupted)),
            Loss::Terminating(_) | Loss::Killing(_) | Loss::Killed => {
                self.end_rest().await;
                let has_left_something = self.child.has_left_something();
                if has_left_something && self.child.descendants().is_empty() {
                    // It may also be a child that distlock had before: without `/proc` it cannot tell.
                    self.report.event(self.named, &Event::Survived { pids: Vec::new() });
                }
                if interrupted.is_some() || self.is_asked_to_end || has_left_something {
                    End::StoppedForGood
                } else {
                    End::Stopped
                }
            }
        }
    }

    /// Waits until no descendant of the child is left, or it is certain that one cannot be killed.
    ///
    /// No system reports that, so this polls.
    async fn end_rest(&mut self) {
        if self.loss == Loss::Killed {
            // Processes that have appeared since, such as those that another user's program has left, are killed now.
            self.loss = Loss::Terminating(CLOCK.now());
        }
        while self.loss != Loss::Killed && self.child.has_left_something() {
            tokio::select! {
                biased;
                () = kill_due(self.loss) => self.kill(),
                signal = self.signals.next() => self.pass_on(signal),
                () = sleep(INTERVAL) => {}
            }
        }
    }
}

/// Waits until it is time to kill the processes.
async fn kill_due(loss: Loss) {
    match loss {
        Loss::Terminating(kill_at) => CLOCK.sleep_until(kill_at).await,
        Loss::Killing(_) => sleep(INTERVAL).await,
        Loss::None | Loss::Ignored | Loss::Killed => pending().await,
    }
}
