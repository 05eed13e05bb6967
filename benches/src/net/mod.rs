//! The log over the network: servers as processes of their own, the load in this one, all on this machine.
//!
//! ```text
//! bars.rs      the ratios that the network must reach
//!   appends.rs, many.rs, reads.rs, views.rs, tail.rs, produce.rs, failover.rs    what is measured
//!     load.rs     appenders by the hundred, on one thread       kafka.rs  for comparison
//!       wire.rs   HTTP/2 as far as they need it                 named.rs  named logs of servers
//!     bare.rs     messages over gRPC, and nothing else
//!     servers.rs  `chiplog serve`
//!       process.rs  other programs, which end with this one
//! ```

pub(crate) mod appends;
pub(crate) mod bare;
pub(crate) mod bars;
pub(crate) mod failover;
pub(crate) mod kafka;
pub(crate) mod load;
pub(crate) mod many;
pub(crate) mod named;
pub(crate) mod process;
pub(crate) mod produce;
pub(crate) mod reads;
pub(crate) mod servers;
pub(crate) mod tail;
pub(crate) mod views;
mod wire;

use anyhow::Result;
use std::future::Future;
use tokio::runtime::Builder;

/// Runs a future on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    Builder::new_current_thread().enable_all().build()?.block_on(work)
}
