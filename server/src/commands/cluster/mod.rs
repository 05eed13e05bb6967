//! Commands that manage a cluster.

pub(crate) mod cost;
pub(crate) mod logs;
pub(crate) mod member;
pub(crate) mod options;
pub(crate) mod replicas;
pub(crate) mod status;
pub(crate) mod top;
