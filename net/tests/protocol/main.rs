//! The protocol's documentation and generated code: its page, its protos, the Go code.
#![allow(clippy::unwrap_used, reason = "a test")]

mod go;
mod lint;
mod page;
mod readme;
