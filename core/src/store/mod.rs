//! store
pub(crate) mod block;
pub(crate) mod layout;
