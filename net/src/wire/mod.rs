//! Everything that is sent between processes: messages, errors as statuses, addresses, TLS.

pub mod address;
pub mod connect_error;
pub mod dates;
pub(crate) mod durability;
pub mod ids;
pub(crate) mod log_info;
#[cfg(feature = "server")]
pub(crate) mod logspec_request;
pub mod proto;
pub(crate) mod protocol;
pub mod status;
#[cfg(feature = "server")]
pub(crate) mod tcp;
pub mod tls;
