//! chiplog
mod batch;
mod checksum;
mod codec;
mod config;
pub mod disk;
mod error;
mod store;
mod types;
pub use batch::*;
pub use codec::Codec;
pub use config::*;
pub use error::*;
pub use types::*;
