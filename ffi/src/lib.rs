//! The C ABI of chiplog: the embedded log, the client, the follower. cbindgen generates `include/chiplog.h` from
//! these sources. The header says what a C program needs to know; this page describes the implementation.
//!
//! | file | what it is |
//! |---|---|
//! | `support/fork.rs` | which process this is |
//! | `support/handle_table.rs` | handles: numbers disguised as pointers, and the tables behind them |
//! | `support/panic_guard.rs` | wraps each entry: no panic leaves it |
//! | `abi/once_callback.rs` | a callback that runs at most once, and never after it was removed |
//! | `support/threads.rs` | chiplog's threads block the program's signals |
//! | `abi/version.rs` | which version this is |
//! | `abi/error.rs` | status codes, the error object |
//! | `abi/values.rs` | slices, times, texts, structs that grow, callbacks |
//! | `abi/trace.rs` | passes notices to a callback |
//! | `handles/options.rs` | the embedded log's options |
//! | `handles/batch.rs`, `handles/ticket.rs`, `abi/records.rs` | batches to append, outcomes of appends, records that
//! were read |
//! | `handles/reader.rs` | one reader for all logs: embedded, remote, follower's |
//! | `handles/session.rs`, `handles/log.rs`, `handles/read_only.rs` | the embedded log |
//! | `handles/client.rs`, `handles/producer.rs` | the log over the network |
//! | `handles/follower.rs` | a copy of the log in the program |
//!
//! Invariants:
//! - No entry unwinds, reads the environment (tokio reads one variable), or touches the program's signals.
//! - A call with a handle that is not open returns an error and never touches freed memory.
//! - Each function of the header is listed in `parity.toml`. Each operation that Rust has and C does not has its
//!   reason there.
#![allow(unsafe_code, reason = "the boundary to C; each block names the condition it relies on")]

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
