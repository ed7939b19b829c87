//! A command that runs under the lock: what happens to it until it has ended.

use std::future::pending;
use std::time::Duration;

use distlock::{Clock, Hold, LossReason, Moment};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::time::sleep;

use crate::arguments::OnLost;
use crate::child::{Change, Child, INTERVAL, Sent};
use crate::contact::Contact;
use crate::event::Event;
use crate::exit::{self, Ending, Failure};
use crate::job::{AfterStop, Following, Job};
use crate::report::Report;
use crate::signals::Signals;

/// Runs while the machine sleeps, as leases do.
const CLOCK: Clock = Clock::system();

/// How long what has been killed may take to end.
const DYING: Duration = Duration::from_secs(1);

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
    /// They are being killed, until this moment.
    Killing(Moment),
    /// What is left cannot be killed.
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
    pub(crate) async fn until_the_end(mut self) -> Result<Ending, Failure> {
        loop {
            match self.next().await? {
                Happening::Lost(reason) => self.lost(reason),
                Happening::KillDue => self.kill(),
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

    /// Kills what there is. To be called again and again: one that is being killed may have started another.
    fn kill(&mut self) {
        let now = CLOCK.now();
        let sent = self.child.signal_all(Signal::SIGKILL);
        match self.loss {
            Loss::Killing(until) if now < until => {}
            Loss::Killing(_) => {
                self.loss = Loss::Killed;
                self.report_survivors(sent.reached);
            }
            _ => {
                self.loss = Loss::Killing(now.plus(DYING));
                self.report_sent(Signal::SIGKILL, sent);
            }
        }
    }

    fn report_sent(&self, signal: Signal, sent: Sent) {
        if !sent.reached.is_empty() || sent.refused.is_empty() {
            self.report.event(self.name, &Event::Terminating { signal });
        }
        self.report_refused(signal, sent.refused);
    }

    fn report_survivors(&self, pids: Vec<Pid>) {
        if !pids.is_empty() {
            self.report.event(self.name, &Event::Survived { pids });
        }
    }

    fn report_refused(&self, signal: Signal, pids: Vec<Pid>) {
        if !pids.is_empty() {
            self.report.event(self.name, &Event::Refused { signal, pids });
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        match signal {
            Signal::SIGTSTP if self.following() == Following::Nothing => {}
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
        // We have stopped with the child, and nobody may have renewed the lease meanwhile.
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
            // Without a lease the lock stays held while we are stopped.
            Loss::None | Loss::Ignored | Loss::Killed => Following::Us,
        }
    }

    /// Whether there is a loss that is about to be told: then all that is stopped is continued, to end.
    fn is_to_end(&self) -> bool {
        self.loss == Loss::None && self.on_lost == OnLost::Terminate && !self.hold.is_valid()
    }

    /// The child has ended. After a loss, whatever else it has started has to as well.
    async fn ended(mut self, ending: Ending) -> Ending {
        let reach = self.job.child_ended(&self.child);
        let by_keyboard = self.child.may_have_been_interrupted_with_its_group();
        match self.loss {
            Loss::None | Loss::Ignored => reach
                .filter(|_| by_keyboard && ending == Ending::Signal(Signal::SIGINT))
                .map_or(ending, Ending::Interrupted),
            Loss::Terminating(_) | Loss::Killing(_) | Loss::Killed => {
                self.end_rest().await;
                Ending::Code(exit::LOST)
            }
        }
    }

    /// Waits until nothing is left that the child has started, or it is certain that something cannot be killed.
    ///
    /// No system tells when nothing is left, so this looks again and again.
    async fn end_rest(&mut self) {
        if self.loss == Loss::Killed {
            // What has come since then, as what another user's program has left, is killed now.
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

/// Waits until it is time to kill what there is.
async fn kill_due(loss: Loss) {
    match loss {
        Loss::Terminating(kill_at) => CLOCK.sleep_until(kill_at).await,
        Loss::Killing(_) => sleep(INTERVAL).await,
        Loss::None | Loss::Ignored | Loss::Killed => pending().await,
    }
}
