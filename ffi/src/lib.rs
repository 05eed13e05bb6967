//! The C ABI of chiplog: the embedded log, the client, the follower. `include/chiplog.h` is made of these sources by cbindgen
//! and says what C has to know; here is how it is kept.
//!
//! | file | what it is |
//! |---|---|
//! | `support/fork.rs` | which process this is |
//! | `support/handle_table.rs` | handles: numbers in a pointer's clothes, and the tables behind them |
//! | `support/panic_guard.rs` | what every entry goes through: no panic gets out |
//! | `abi/once_callback.rs` | a callback that is called once at most, and surely not after its end |
//! | `support/threads.rs` | signals stay the program's |
//! | `abi/version.rs` | which version this is |
//! | `abi/error.rs` | status codes, the error object |
//! | `abi/values.rs` | slices, times, texts, structs that grow, callbacks |
//! | `abi/trace.rs` | what is noticed, told to a callback |
//! | `handles/options.rs` | the embedded log's options |
//! | `handles/batch.rs`, `handles/ticket.rs`, `abi/records.rs` | what is appended, what became of it, what is read |
//! | `handles/reader.rs` | one reader for all: embedded, remote, follower's |
//! | `handles/session.rs`, `handles/log.rs`, `handles/read_only.rs` | the embedded log |
//! | `handles/client.rs`, `handles/producer.rs` | the log over the network |
//! | `handles/follower.rs` | a copy in the program |
//!
//! Invariants:
//! - Nothing unwinds out of an entry, reads the environment (tokio does, for one variable), or touches the program's signals.
//! - A handle that is not open is an error, never memory that is not there.
//! - Every function of the header stands in `parity.toml`, and what Rust can do and C cannot has its reason there.
#![allow(unsafe_code, reason = "the boundary to C; each block says on whose word it relies")]

mod abi;
mod handles;
mod support;
pub use abi::error::*;
pub use abi::records::*;
pub use abi::trace::*;
pub use abi::values::*;
pub use abi::version::*;
pub use handles::batch::*;
pub use handles::client::*;
pub use handles::follower::*;
pub use handles::log::*;
pub use handles::log_options::*;
pub use handles::options::*;
pub use handles::producer::*;
pub use handles::read_only::*;
pub use handles::reader::*;
pub use handles::session::*;
pub use handles::ticket::*;
