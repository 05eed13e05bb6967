//! The C ABI of chiplog: the embedded log, the client, the follower. `include/chiplog.h` is made of these sources by cbindgen
//! and says what C has to know; here is how it is kept.
//!
//! | file | what it is |
//! |---|---|
//! | `fork.rs` | which process this is |
//! | `handle.rs` | handles: numbers in a pointer's clothes, and the tables behind them |
//! | `guard.rs` | what every entry goes through: no panic gets out |
//! | `gate.rs` | a callback that is called once at most, and surely not after its end |
//! | `threads.rs` | signals stay the program's |
//! | `version.rs` | which version this is |
//! | `error.rs` | status codes, the error object |
//! | `values.rs` | slices, times, texts, structs that grow, callbacks |
//! | `trace.rs` | what is noticed, told to a callback |
//! | `options.rs` | the embedded log's options |
//! | `batch.rs`, `ticket.rs`, `records.rs` | what is appended, what became of it, what is read |
//! | `reader.rs` | one reader for all: embedded, remote, follower's |
//! | `session.rs`, `log.rs`, `viewer.rs` | the embedded log |
//! | `client.rs`, `producer.rs` | the log over the network |
//! | `follower.rs` | a copy in the program |
//!
//! Invariants:
//! - Nothing unwinds out of an entry, reads the environment (tokio does, for one variable), or touches the program's signals.
//! - A handle that is not open is an error, never memory that is not there.
//! - Every function of the header stands in `parity.toml`, and what Rust can do and C cannot has its reason there.
#![allow(unsafe_code, reason = "the boundary to C; each block says on whose word it relies")]

mod batch;
mod client;
mod entry;
mod error;
mod follower;
mod fork;
mod gate;
mod guard;
mod handle;
mod log;
mod log_options;
mod options;
mod producer;
mod reader;
mod records;
mod session;
mod threads;
mod ticket;
mod trace;
mod values;
mod version;
mod viewer;

pub use batch::*;
pub use client::*;
pub use error::*;
pub use follower::*;
pub use log::*;
pub use log_options::*;
pub use options::*;
pub use producer::*;
pub use reader::*;
pub use records::*;
pub use session::*;
pub use ticket::*;
pub use trace::*;
pub use values::*;
pub use version::*;
pub use viewer::*;
