//! A listener's access control: certificates, tokens, limits, each at its boundary.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod attacks;
mod certificates;
mod limits;
mod others;
mod peers;
mod pki;
mod plain_http;
mod scopes;
mod support;
mod tokens;
