//! Who holds permits of a semaphore and who waits for them, and taking them from a holder.

use std::collections::HashMap;
use std::num::NonZeroU32;

use lock_core::Mode;
use lock_entries::newer;

use crate::backend::ZooKeeperEntries;
use crate::contender::{AT_THE_END, is_newer, number_of_permits, protection_id_in, read_lease};
use crate::failure::{Failure, unexpected};
use crate::inspection::Seats;
use crate::queue::in_order;
use crate::session::Session;

/// One that holds permits or waits for them.
struct User {
    /// The paths of its nodes, the first of which stands for all of them.
    nodes: Vec<String>,
    take: u32,
    /// How many permits there are; Curator's users do not say so.
    of: Option<u32>,
}

impl ZooKeeperEntries {
    /// Those in a semaphore's directories, the queue and the permits that are taken, with these children.
    pub(crate) async fn seats_of_permits(
        &self,
        session: &Session,
        directories: &[String],
        children: Vec<Vec<String>>,
    ) -> Result<Seats, Failure> {
        let ([queue, leases], Ok([waiting, taken])) = (directories, <[Vec<String>; 2]>::try_from(children))
        else {
            return Err(unexpected());
        };
        if let Some(name) = waiting.iter().chain(&taken).find(|name| is_newer(name)) {
            return Err(Failure::Refused(newer(name)));
        }
        let waiters = in_order(session, queue, &waiting, self.recipe.accepted).await?;
        let waiters = waiters.into_iter().map(|node| {
            let permits = number_of_permits(&node.name);
            let (take, of) = (permits.map_or(1, |(take, _)| take), permits.map(|(_, of)| of));
            User { nodes: vec![format!("{queue}/{}", node.name)], take, of }
        });
        let mut users = holders(leases, taken, &waiting);
        let holding = users.len();
        // What the first user says. Where all are Curator's, at least as many as are taken.
        let taken = users.iter().map(|holder| holder.take).fold(0, u32::saturating_add);
        users.extend(waiters);
        let all_of = users.iter().find_map(|user| user.of).unwrap_or(taken.max(1));
        let number = |number: u32| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let mode =
            |user: &User| Mode::Permits { take: number(user.take), of: number(user.of.unwrap_or(all_of)) };
        let all = users.into_iter().map(|user| (mode(&user), user.nodes)).collect();
        Ok(Seats { all, holding: Some(holding) })
    }
}

/// The holders among the nodes of permits. The nodes of one that is still in the queue are not a holder's: they wait for room. Nor are
/// those for which there was no room when they were created: their attempt is about to remove them.
fn holders(directory: &str, mut taken: Vec<String>, waiting: &[String]) -> Vec<User> {
    taken.retain(|name| read_lease(name).is_some());
    taken.sort_by_cached_key(|name| (read_lease(name), name.clone()));
    let numbers: Vec<_> = taken.iter().filter_map(|name| read_lease(name)).collect();
    let mut holders: Vec<User> = Vec::new();
    let mut places = HashMap::new();
    for name in taken {
        let protection_id = protection_id_in(&name).map(str::to_owned);
        if protection_id.as_ref().is_some_and(|protection_id| {
            waiting.iter().any(|waiter| waiter.starts_with(protection_id.as_str()))
        }) {
            continue;
        }
        let node = format!("{directory}/{name}");
        if let Some(place) = protection_id.as_ref().and_then(|protection_id| places.get(protection_id)) {
            let holder: &mut User = &mut holders[*place];
            holder.take += 1;
            holder.nodes.push(node);
        } else {
            places.extend(protection_id.map(|protection_id| (protection_id, holders.len())));
            let of = number_of_permits(&name).map(|(_, of)| of);
            holders.push(User { nodes: vec![node], take: 1, of });
        }
    }
    holders.retain(|holder| may_hold(holder, &numbers));
    holders
}

/// Whether its permits are among the first of those that are taken. A holder's always are: what came before them only becomes less. Not
/// so where numbers say nothing of the order, nor for Curator's users, which do not say how many there are.
fn may_hold(user: &User, numbers: &[i64]) -> bool {
    let Some((last, of)) = user.nodes.last().and_then(|node| read_lease(node)).zip(user.of) else {
        return true;
    };
    let before = numbers.partition_point(|number| *number <= last);
    last == AT_THE_END || u32::try_from(before).is_ok_and(|before| before <= of)
}
