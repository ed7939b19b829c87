//! Plain data types: names, owners, tokens, status, capabilities, errors, secrets.

pub(crate) mod capabilities;
pub(crate) mod error;
pub(crate) mod loss;
pub(crate) mod mode;
pub(crate) mod name;
pub(crate) mod origin;
pub(crate) mod owner;
pub(crate) mod password;
mod setters;
pub(crate) mod status;
pub(crate) mod token;

pub use capabilities::{
    Breaking, Capabilities, Failover, Fairness, Fencing, Inspection, Leasing, PermitLimits, Reach, Reserving,
};
pub use error::{ErrorKind, LockError, Operation};
pub use loss::{HoldEnd, LossReason};
pub use mode::{LockKind, Mode};
pub use name::{CharacterSet, LockName, NameRules, PhysicalName};
pub use origin::ProcessOrigin;
pub use owner::Owner;
pub use password::{Password, Secret};
pub use status::{Broken, HolderId, HolderInfo, LockList, LockStatus, Participant};
pub use token::FencingToken;

pub(crate) use name::hash;
pub(crate) use owner::Kind;
pub(crate) use setters::setters;
