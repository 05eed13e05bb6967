//! The C ABI of chiplog: the embedded log, the client, the follower. cbindgen generates `include/chiplog.h` from
//! these sources. The header says what a C program needs to know; this page describes the implementation.
//!
//! | file | what it is |
//! |---|---|
//! | `support/fork.rs` | which process this is |
//! | `support/handle_table.rs` | handles: numbers disguised as pointers, and the tables behind them |
//! | `support/panic_guard.rs` | no panic leaves a function |
//! | `support/threads.rs` | chiplog's threads block the program's signals |
//! | `abi/entry.rs` | the body of each function, apart from its own expression |
//! | `abi/error.rs` | status codes, the error object |
//! | `abi/pointers.rs`, `abi/values.rs`, `abi/growing.rs` | texts, bytes, slices, places for results; times, positions, callbacks;
//! structs that grow |
//! | `abi/once_callback.rs`, `abi/descriptor.rs` | a callback that runs at most once, and never after it was removed; a descriptor for
//! event loops |
//! | `abi/records.rs` | records that were read |
//! | `abi/trace.rs`, `abi/version.rs` | passes notices to a callback; which version this is |
//! | `handles/log/`, `handles/session.rs`, `handles/read_only.rs` | the embedded log |
//! | `handles/logs/` | many named logs in one directory |
//! | `handles/batch.rs`, `handles/ticket.rs` | batches to append, outcomes of appends |
//! | `handles/reader/` | one reader for all logs: embedded, remote, follower's |
//! | `handles/client/`, `handles/producer.rs` | the log over the network |
//! | `handles/follower/` | a copy of the log in the program |
//!
//! Invariants:
//! - No entry unwinds, reads the environment (tokio reads one variable), or touches the program's signals.
//! - A call with a handle that is not open returns an error and never touches freed memory.
//! - Each function of the header is listed in `parity.toml`. Each operation that Rust has and C does not has its
//!   reason there.
//! - A function is unsafe as a whole: its comment, which is also the header's, says what its arguments must be.
#![allow(unsafe_code, reason = "the boundary to C; each block names the condition it relies on")]
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "each line of a function relies on the condition that its comment states"
)]
#![allow(clippy::missing_safety_doc, reason = "as above")]
#![allow(non_camel_case_types, reason = "the names of C")]

mod abi;
mod handles;
mod support;
pub use abi::error::*;
pub use abi::records::*;
pub use abi::trace::*;
pub use abi::values::*;
pub use abi::version::*;
pub use handles::batch::*;
pub use handles::client::calls::*;
pub use handles::client::options::*;
pub use handles::client::reader::*;
pub use handles::follower::calls::*;
pub use handles::follower::events::*;
pub use handles::follower::options::*;
pub use handles::follower::status::*;
pub use handles::log::log_options::*;
pub use handles::log::open::*;
pub use handles::log::options::*;
pub use handles::log::read::*;
pub use handles::log::state::*;
pub use handles::log::write::*;
pub use handles::logs::calls::*;
pub use handles::logs::info::*;
pub use handles::logs::options::*;
pub use handles::logs::together::*;
pub use handles::producer::*;
pub use handles::read_only::*;
pub use handles::reader::calls::*;
pub use handles::reader::state::*;
pub use handles::session::*;
pub use handles::ticket::*;
