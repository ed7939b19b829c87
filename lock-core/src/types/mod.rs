//! Plain data types: names, owners, tokens, status, capabilities, errors, secrets.

pub(crate) mod capabilities;
pub(crate) mod error;
pub(crate) mod loss;
pub(crate) mod mode;
pub(crate) mod name;
pub(crate) mod origin;
pub(crate) mod owner;
pub(crate) mod password;
pub(crate) mod status;
pub(crate) mod token;
