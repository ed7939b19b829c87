//! Waits without a snapshot, which keep no one waiting.
//!
//! A function that waits for a lock runs with a snapshot, because each statement has one. So the wait is in the check of a
//! domain, which a block of procedural SQL assigns after it has committed: at that point it has none. That is how the server
//! behaves, and not what it promises. So the client looks whether a wait has a snapshot, and after each of them whether the
//! session has the lock.

use lock_core::Operation;

use crate::key::Key;
use crate::link::{Claim, Wanted};
use crate::options::TokenSource;
use crate::permits::MARK;
use crate::pg_locks::{Looked, held_here};
use crate::session_tag::SessionTag;
use crate::statement::{Waiter, comment, tokens_from, within_limit};

/// The domains whose checks wait, in a schema of their own. What they are assigned does not matter.
const EXCLUSIVE: &str = "distlock.wait";
const SHARED: &str = "distlock.wait_to_share";

/// The setting with the key.
const SETTING: &str = "distlock.key";

pub(crate) fn create() -> String {
    let domain = |name: &str, function: &str| {
        let waits = format!("({function}(current_setting('{SETTING}')::bigint) IS NULL) IS NOT NULL");
        format!("CREATE DOMAIN {name} AS bigint CHECK (value IS NULL OR {waits})")
    };
    format!(
        "{}CREATE SCHEMA IF NOT EXISTS distlock;{};{}",
        comment(Operation::Connect),
        domain(EXCLUSIVE, "pg_advisory_lock"),
        domain(SHARED, "pg_advisory_lock_shared")
    )
}

/// Fails if a domain is missing, or the user may not use it.
pub(crate) fn probe() -> String {
    let comment = comment(Operation::Connect);
    format!("{comment}DO $d$DECLARE one {EXCLUSIVE};two {SHARED};BEGIN NULL;END$d$")
}

/// The first message of a wait: its key, and no limit of the server.
pub(crate) fn begin(key: Key, tag: SessionTag, limit: Option<u64>) -> String {
    let set = format!("set_config('{SETTING}','{key}',false)");
    format!("{}SET statement_timeout=0;{}", comment(Operation::Acquire), within_limit(tag, limit, &set))
}

/// The message that waits. A block that commits has to be alone in its message.
pub(crate) fn wait(wanted: Wanted, tag: SessionTag, waiter: &Waiter) -> String {
    let domain = if wanted == Wanted::Shared { SHARED } else { EXCLUSIVE };
    format!(
        "{}DO $d$DECLARE got {domain};BEGIN \
         IF NOT {} OR pg_is_in_recovery() THEN RAISE EXCEPTION 'this is another session';END IF;\
         COMMIT;GET DIAGNOSTICS got=ROW_COUNT;END$d$",
        waiter.comment(),
        tag.is_here()
    )
}

/// The message after the wait: the token, if the session has the lock.
pub(crate) fn check(claim: &Claim, tokens: TokenSource, tag: SessionTag) -> String {
    let held = held_here(Looked::Lock(claim.key));
    let marked = match claim.wanted {
        Wanted::Permits(_) => format!(" AND pg_advisory_lock({}+{MARK}) IS NOT NULL", claim.key),
        Wanted::Exclusive | Wanted::Shared => String::new(),
    };
    let answer = format!(
        "CASE WHEN EXISTS (SELECT FROM pg_locks WHERE {held}) THEN CASE WHEN true{marked} THEN ({})::text END ELSE '0' END",
        tokens_from(tokens, claim.sections)
    );
    format!("{}{}", comment(Operation::Acquire), within_limit(tag, None, &answer))
}
