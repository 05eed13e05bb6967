//! Authorization: tokens, their roles, scopes and accounts, and the end of calls whose token is revoked.

pub(crate) mod audit;
pub(crate) mod methods;
pub(crate) mod revocation;
pub mod roles;
pub(crate) mod token_file;
pub(crate) mod tokens;
