//! Object stores for chiplog: an implementation of [`chiplog::vault::Vault`] over S3, Google Cloud Storage, Azure, or a
//! directory. A log keeps copies of stretches of its entries there.
//!
//! ```
//! use chiplog::vault::Vault;
//! use chiplog_tier::{ObjectVault, VaultOptions};
//! use std::time::Duration;
//!
//! # let temporary = tempfile::tempdir()?;
//! # let location = format!("file://{}/vault", temporary.path().display());
//! // "s3://bucket/prefix" with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment; here a directory
//! let vault = ObjectVault::open(&location, VaultOptions::default().timeout(Duration::from_secs(10)))?;
//! vault.put("o/7", &["seven".into()])?;
//! assert_eq!(vault.size("o/7")?, Some(5));
//! vault.delete("o/7")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A store needs `If-None-Match: *` for [`create`](chiplog::vault::Vault::create), and nothing else beyond plain reads and
//! writes: no compare-and-swap, no conditional upload in parts. `tracing` gets a line for each attempt that is made again.
//!
//! TLS is rustls with ring, as in `chiplog-net`. Nothing here installs a process-wide default.

mod call;
mod http;
mod location;
mod options;
mod pieces;
mod runtime;
mod servers;
mod store;
mod upload;
mod vault;

#[doc(hidden)]
pub use location::local_directory;
pub use options::VaultOptions;
pub use servers::{ServedLog, ServerVault, ServerVaultOptions};
pub use vault::ObjectVault;
