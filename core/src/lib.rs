//! chiplog
mod batch;
mod checksum;
mod codec;
mod completion;
mod config;
pub mod disk;
mod error;
mod futex;
mod session;
pub mod inspect;
mod store;
mod types;
pub use batch::*;
pub use codec::Codec;
pub use completion::{Appended, Ticket};
pub use config::*;
pub use error::*;
pub use types::*;
