//! The renewals of a group of holds: one call for each exclusive hold, and one for all shared holds of a name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{LeaseState, LockError, Operation};
use redis::{Cmd, Pipeline, RedisResult, Value};

use crate::backend::{Lease, milliseconds};
use crate::failure::{explain, is_forgotten_script, nonsense};
use crate::keys::Keys;
use crate::link::Link;
use crate::record::loss;
use crate::scripts::{RENEW, RENEW_SHARED};

/// The calls, and which of the leases each renews.
pub(crate) struct Renewals {
    calls: Pipeline,
    renewed: Vec<Renewed>,
    leases: usize,
}

/// The leases that one call renews, by their places.
enum Renewed {
    One(usize),
    Together(Vec<usize>),
}

impl Renewed {
    fn places(&self) -> &[usize] {
        match self {
            Self::One(place) => std::slice::from_ref(place),
            Self::Together(places) => places,
        }
    }
}

impl Renewals {
    pub(crate) fn of(leases: &[Arc<Lease>]) -> Self {
        let mut this = Self {
            calls: Pipeline::with_capacity(leases.len()),
            renewed: Vec::with_capacity(leases.len()),
            leases: leases.len(),
        };
        let mut shared: HashMap<(&Keys, Duration), Vec<usize>> = HashMap::new();
        for (index, lease) in leases.iter().enumerate() {
            if lease.is_shared() {
                shared.entry((&lease.keys, lease.length)).or_default().push(index);
            } else {
                let mut call = lease.keys.call(RENEW);
                call.arg(lease.id()).arg(milliseconds(lease.length));
                this.push(call, Renewed::One(index));
            }
        }
        for ((keys, length), together) in shared {
            let mut call = keys.call(RENEW_SHARED);
            call.arg(milliseconds(length));
            for index in &together {
                call.arg(leases[*index].id());
            }
            this.push(call, Renewed::Together(together));
        }
        this
    }

    fn push(&mut self, call: Cmd, renewed: Renewed) {
        self.calls.add_command(call);
        self.renewed.push(renewed);
    }

    /// Returns the state of each lease. Sends the calls again if the server has forgotten a script.
    pub(crate) async fn send(mut self, link: &Link) -> Result<Vec<LeaseState>, LockError> {
        let failed = |error| explain(Operation::Renew, error);
        let mut answers = link.send_all(&mut self.calls).await.map_err(failed)?;
        if answers.iter().any(|answer| answer.as_ref().is_err_and(is_forgotten_script)) {
            let scripts = [RENEW, RENEW_SHARED];
            answers = link.load_and_send(&scripts, self.calls.cmd_iter()).await.map_err(failed)?;
        }
        let mut states = vec![LeaseState::Unknown; self.leases];
        for (answer, renewed) in answers.into_iter().zip(self.renewed) {
            let places = renewed.places();
            for (place, state) in places.iter().zip(read(answer, places.len())?) {
                states[*place] = state;
            }
        }
        Ok(states)
    }
}

/// Reads the answer to the call that renews so many leases.
fn read(answer: RedisResult<Value>, leases: usize) -> Result<Vec<LeaseState>, LockError> {
    match answer {
        Ok(Value::Int(code)) if leases == 1 => Ok(vec![state(code)?]),
        Ok(Value::Array(codes)) if leases == codes.len() => codes
            .into_iter()
            .map(|code| match code {
                Value::Int(code) => state(code),
                other => Err(nonsense(Operation::Renew, format!("{other:?}"))),
            })
            .collect(),
        Ok(other) => Err(nonsense(Operation::Renew, format!("{other:?}"))),
        Err(error) => {
            // The core warns with the name of the lock, at a limited rate.
            tracing::debug!(target: "distlock", error = %explain(Operation::Renew, error), "a lease could not be renewed");
            Ok(vec![LeaseState::Unknown; leases])
        }
    }
}

fn state(code: i64) -> Result<LeaseState, LockError> {
    if code == 1 { Ok(LeaseState::Held) } else { Ok(LeaseState::Lost(loss(Operation::Renew, code)?)) }
}

#[cfg(test)]
mod tests {
    use lock_core::LossReason;

    use super::*;

    #[test]
    fn an_answer_is_read_for_each_lease() {
        let answer = Value::Array(vec![Value::Int(1), Value::Int(3)]);
        let states = read(Ok(answer.clone()), 2).unwrap();
        assert_eq!(states, [LeaseState::Held, LeaseState::Lost(LossReason::Broken)]);
        assert_eq!(read(Ok(Value::Int(0)), 1).unwrap(), [LeaseState::Lost(LossReason::Deleted)]);
        for (answer, leases) in [(answer, 3), (Value::Int(1), 2), (Value::Nil, 1), (Value::Int(7), 1)] {
            assert!(read(Ok(answer), leases).is_err());
        }
    }
}
