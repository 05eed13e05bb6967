//! Shared by all commands and the server: exit codes, errors, output, units, logging.

pub(crate) mod exit;
pub(crate) mod failure;
pub(crate) mod format;
pub(crate) mod hints;
pub(crate) mod locks;
pub(crate) mod logging;
pub(crate) mod number;
pub(crate) mod output;
pub(crate) mod runtime;
pub(crate) mod scratch;
pub(crate) mod secret;
pub(crate) mod signals;
pub(crate) mod version;
