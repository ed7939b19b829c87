//! The messages of etcd's API, version 3, as far as this crate uses them: written by hand, so that a build needs no compiler for
//! their definitions. Fields that it never sets or reads are left out.
//!
//! A choice between fields (`oneof`) looks like optional fields of which one is set: the bytes are the same. An enumeration is
//! its number.

use prost::Message;

/// A request with one answer.
pub(crate) trait Call: Message + 'static {
    type Answer: Message + Default + 'static;
    const PATH: &'static str;
}

macro_rules! calls {
    ($($question:ident -> $answer:ident at $path:literal;)+) => {$(
        impl Call for $question {
            type Answer = $answer;
            const PATH: &'static str = $path;
        }
    )+};
}

calls! {
    Range -> RangeAnswer at "/etcdserverpb.KV/Range";
    Txn -> TxnAnswer at "/etcdserverpb.KV/Txn";
    LeaseGrant -> LeaseAnswer at "/etcdserverpb.Lease/LeaseGrant";
    LeaseRevoke -> LeaseAnswer at "/etcdserverpb.Lease/LeaseRevoke";
    LeaseTimeToLive -> LeaseAnswer at "/etcdserverpb.Lease/LeaseTimeToLive";
    // The server's definition is a stream; one request on a stream of its own has one answer, which belongs to it for certain.
    LeaseKeepAlive -> LeaseAnswer at "/etcdserverpb.Lease/LeaseKeepAlive";
    Authenticate -> Text at "/etcdserverpb.Auth/Authenticate";
    Status -> Text at "/etcdserverpb.Maintenance/Status";
}

/// The path of a stream of requests about watches, and of their events.
pub(crate) const WATCH: &str = "/etcdserverpb.Watch/Watch";

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    /// That of the store when the server answered.
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
    /// In which the last entry of the log was written that the server has applied.
    #[prost(uint64, tag = "4")]
    pub(crate) term: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    /// The revision that created the key.
    #[prost(int64, tag = "2")]
    pub(crate) created: i64,
    /// The revision of its last change.
    #[prost(int64, tag = "3")]
    pub(crate) changed: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

/// The keys from `key` to before `end`, or `key` alone.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Range {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) end: String,
    /// Zero for all.
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(int32, tag = "5")]
    pub(crate) order: i32,
    #[prost(int32, tag = "6")]
    pub(crate) order_by: i32,
    /// Without the values.
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
    /// Nothing that was created later; zero for no limit.
    #[prost(int64, tag = "13")]
    pub(crate) created_by: i64,
}

/// What is sent for an order, and by what.
pub(crate) const RISING: i32 = 1;
pub(crate) const FALLING: i32 = 2;
pub(crate) const BY_CREATION: i32 = 2;

impl Range {
    /// One key.
    pub(crate) fn of(key: &str) -> Self {
        Self { key: key.to_owned(), ..Self::default() }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeAnswer {
    #[prost(message, required, tag = "1")]
    pub(crate) header: Header,
    #[prost(message, repeated, tag = "2")]
    pub(crate) found: Vec<KeyValue>,
    /// How many keys there are, whatever was asked for of them.
    #[prost(int64, tag = "4")]
    pub(crate) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Put {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
    /// The key keeps its lease.
    #[prost(bool, tag = "6")]
    pub(crate) keeps_lease: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Delete {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
}

/// A condition on a key, or on each of those before `end`. A key that does not exist has the revisions zero.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    /// 0 for equal, 2 for less.
    #[prost(int32, tag = "1")]
    pub(crate) result: i32,
    /// 1 for the creation, 2 for the last change.
    #[prost(int32, tag = "2")]
    pub(crate) target: i32,
    #[prost(string, tag = "3")]
    pub(crate) key: String,
    #[prost(int64, optional, tag = "5")]
    pub(crate) created: Option<i64>,
    #[prost(int64, optional, tag = "6")]
    pub(crate) changed: Option<i64>,
    #[prost(string, tag = "64")]
    pub(crate) end: String,
}

impl Compare {
    /// The key was created by this revision; zero if it does not exist.
    pub(crate) fn created_by(key: &str, revision: i64) -> Self {
        Self { target: 1, key: key.to_owned(), created: Some(revision), ..Self::default() }
    }

    /// The key was changed last by this revision.
    pub(crate) fn changed_by(key: &str, revision: i64) -> Self {
        Self { target: 2, key: key.to_owned(), changed: Some(revision), ..Self::default() }
    }

    /// Nothing in this range was created or changed after this revision.
    pub(crate) fn unchanged_since(key: &str, end: &str, revision: i64) -> Self {
        Self { result: 2, end: end.to_owned(), ..Self::changed_by(key, revision + 1) }
    }
}

/// One step of a transaction.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Step {
    #[prost(message, optional, tag = "1")]
    pub(crate) range: Option<Range>,
    #[prost(message, optional, tag = "2")]
    pub(crate) put: Option<Put>,
    #[prost(message, optional, tag = "3")]
    pub(crate) delete: Option<Delete>,
}

impl From<Range> for Step {
    fn from(range: Range) -> Self {
        Self { range: Some(range), ..Self::default() }
    }
}

impl From<Put> for Step {
    fn from(put: Put) -> Self {
        Self { put: Some(put), ..Self::default() }
    }
}

impl Step {
    pub(crate) fn delete(key: &str) -> Self {
        Self { delete: Some(Delete { key: key.to_owned() }), ..Self::default() }
    }
}

/// What to do if all conditions hold, and what to do otherwise, in one step.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Txn {
    #[prost(message, repeated, tag = "1")]
    pub(crate) conditions: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) then: Vec<Step>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) otherwise: Vec<Step>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StepAnswer {
    #[prost(message, optional, tag = "1")]
    pub(crate) range: Option<RangeAnswer>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnAnswer {
    #[prost(message, required, tag = "1")]
    pub(crate) header: Header,
    #[prost(bool, tag = "2")]
    pub(crate) held: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) answers: Vec<StepAnswer>,
}

impl TxnAnswer {
    pub(crate) fn revision(&self) -> i64 {
        self.header.revision
    }

    /// The answer to the one range in it.
    pub(crate) fn range(self) -> RangeAnswer {
        self.answers.into_iter().find_map(|answer| answer.range).unwrap_or_default()
    }
}

macro_rules! about_leases {
    ($($request:ident with $field:ident;)+) => {$(
        #[derive(Clone, PartialEq, Message)]
        pub(crate) struct $request {
            #[prost(int64, tag = "1")]
            pub(crate) $field: i64,
        }
    )+};
}

about_leases! {
    LeaseGrant with seconds;
    LeaseRevoke with id;
    LeaseKeepAlive with id;
    LeaseTimeToLive with id;
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseAnswer {
    #[prost(message, required, tag = "1")]
    pub(crate) header: Header,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    /// In seconds; zero or less if there is no such lease.
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct Authenticate {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

/// Without the password.
impl std::fmt::Debug for Authenticate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Authenticate").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {}

/// The token of a login, or the version of a server.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct Text {
    #[prost(string, tag = "2")]
    pub(crate) text: String,
}

/// Without the token.
impl std::fmt::Debug for Text {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Text")
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) create: Option<WatchCreate>,
    #[prost(message, optional, tag = "2")]
    pub(crate) cancel: Option<WatchCancel>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCreate {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) end: String,
    /// The first revision to report.
    #[prost(int64, tag = "3")]
    pub(crate) from: i64,
    /// What not to report.
    #[prost(int32, repeated, tag = "5")]
    pub(crate) filters: Vec<i32>,
    /// A number that no other watch of the stream has.
    #[prost(int64, tag = "7")]
    pub(crate) id: i64,
}

impl WatchCreate {
    /// Of this key, from this revision on; zero is now.
    pub(crate) fn of(key: &str, from: i64) -> Self {
        Self { key: key.to_owned(), from, ..Self::default() }
    }
}

/// The filter of a watch that reports deletions alone.
pub(crate) const NO_PUTS: i32 = 0;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCancel {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchAnswer {
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    #[prost(bool, tag = "4")]
    pub(crate) is_cancelled: bool,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
}

/// The kind of an event that says that a key is gone; otherwise it has a new value.
pub(crate) const DELETION: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) entry: Option<KeyValue>,
}
