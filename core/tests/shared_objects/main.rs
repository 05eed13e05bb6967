//! Groups of named logs whose older records are in an object store: what is stored, what goes from the disk, and what readers of
//! each log get.
#![allow(clippy::unwrap_used, reason = "a test")]

mod faults;
mod limits;
mod reads;
mod restore;
mod support;
