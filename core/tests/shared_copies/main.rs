//! Copies of one named log of a group that read its older records from the objects of the group: what they copy, what stays on their
//! disks, and what readers get.
#![allow(clippy::unwrap_used, reason = "a test")]

mod discards;
mod feeding;
mod files;
mod objects;
mod support;
