//! The renewals of a group of holds: one call for each. All are sent before the first reply arrives.

use std::sync::Arc;

use lock_core::spi::within;
use lock_core::{LeaseState, LockError, LossReason, Moment, Operation};
use redis::{Pipeline, RedisResult, Value};

use crate::backend::{Lease, milliseconds};
use crate::connection::{Link, Nodes};
use crate::failure::{explain, is_forgotten_script, nonsense};
use crate::record::loss;
use crate::scripts::RENEW;

/// What is renewed together: the leases of a group at one node, by their numbers. A group has several while hash slots have moved.
struct Part {
    link: Arc<Link>,
    numbers: Vec<usize>,
    /// `None` if it took too long.
    renewed: Option<Result<Vec<LeaseState>, LockError>>,
}

/// Returns the state of each lease. What is at one node is renewed together.
pub(crate) async fn renew(nodes: &Nodes, leases: &[Arc<Lease>]) -> Result<Vec<LeaseState>, LockError> {
    let mut states = vec![LeaseState::Unknown; leases.len()];
    let mut parts: Vec<Part> = Vec::new();
    let sent = nodes.client.now();
    for (number, lease) in leases.iter().enumerate() {
        // The loss of contact has been reported, and is the same for all that is at this node.
        let slot = lease.keys.hash_slot;
        let Ok(link) = nodes.of(slot).and_then(|there| there.link(slot, Operation::Renew)) else { continue };
        if !lease.may_go_on(&link, nodes.client.now(), nodes) {
            // It would end soon in any case: its holder learns of that early.
            states[number] = LeaseState::Lost(LossReason::Expired);
            continue;
        }
        match parts.iter_mut().find(|part| Arc::ptr_eq(&part.link, &link)) {
            Some(part) => part.numbers.push(number),
            None => parts.push(Part { link, numbers: vec![number], renewed: None }),
        }
    }
    let is_one = parts.len() == 1;
    // The others of a group do not wait longer for a node that is slow: their answers count only when the call ends.
    let until = if is_one { Moment::FOREVER } else { sent.plus(nodes.client.request_timeout) };
    renew_parts(nodes, &mut parts, leases, until).await;
    for Part { link, numbers, renewed } in parts {
        match renewed {
            Some(Ok(renewed)) => {
                for (number, state) in numbers.into_iter().zip(renewed) {
                    if state == LeaseState::Held {
                        leases[number].goes_on(&link, sent);
                    }
                    states[number] = state;
                }
            }
            Some(Err(error)) if is_one => return Err(error),
            // The other nodes may have answered.
            Some(Err(error)) => {
                tracing::debug!(target: "distlock", %error, "the leases at a node could not be renewed");
            }
            None => {}
        }
    }
    Ok(states)
}

/// All parts at the same time.
async fn renew_parts(nodes: &Nodes, parts: &mut [Part], leases: &[Arc<Lease>], until: Moment) {
    let Some((part, others)) = parts.split_first_mut() else { return };
    let first: Vec<_> = part.numbers.iter().map(|number| &*leases[*number]).collect();
    let renewing = within(nodes.client.context.clock(), until, renew_at(&part.link, &first));
    let others = Box::pin(renew_parts(nodes, others, leases, until));
    (part.renewed, ()) = tokio::join!(renewing, others);
}

/// Sends the calls again if the server has forgotten the script.
async fn renew_at(link: &Link, leases: &[&Lease]) -> Result<Vec<LeaseState>, LockError> {
    let failed = |error| explain(Operation::Renew, error);
    let mut calls = Pipeline::with_capacity(leases.len());
    for lease in leases {
        calls.add_command(lease.keys.call(&RENEW).arg(lease.id).arg(milliseconds(lease.length)).take());
    }
    let mut answers = link.send_in_reign(calls.clone()).await.map_err(failed)?;
    if answers.iter().any(|answer| answer.as_ref().is_err_and(is_forgotten_script)) {
        answers = link.load_and_send(&RENEW, calls.cmd_iter()).await.map_err(failed)?;
    }
    answers.into_iter().map(state).collect()
}

fn state(answer: RedisResult<Value>) -> Result<LeaseState, LockError> {
    match answer {
        Ok(Value::Int(1)) => Ok(LeaseState::Held),
        Ok(Value::Int(code)) => Ok(LeaseState::Lost(loss(Operation::Renew, code)?)),
        Ok(other) => Err(nonsense(Operation::Renew, format!("{other:?}"))),
        Err(error) => {
            // The core warns with the name of the lock, at a limited rate.
            tracing::debug!(target: "distlock", error = %explain(Operation::Renew, error), "a lease could not be renewed");
            Ok(LeaseState::Unknown)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_became_of_the_lease() {
        assert_eq!(state(Ok(Value::Int(1))).unwrap(), LeaseState::Held);
        assert_eq!(state(Ok(Value::Int(3))).unwrap(), LeaseState::Lost(LossReason::Broken));
        assert_eq!(state(Ok(Value::Int(0))).unwrap(), LeaseState::Lost(LossReason::Deleted));
        for answer in [Value::Nil, Value::Int(7), Value::Array(vec![Value::Int(1)])] {
            assert!(state(Ok(answer)).is_err());
        }
    }
}
