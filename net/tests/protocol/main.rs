//! The protocol as it is written down: its page, its protos, what others made of them.
#![allow(clippy::unwrap_used, reason = "a test")]

mod go;
mod lint;
mod page;
mod readme;
