//! Audit: logs calls that need a token of the role `admin`, with the client's address, the token, and the result.
//!
//! Invariant: a call that was let in is logged once: when it is answered, or when its caller or a stopping server
//! abandons it. An abandoned call may have taken effect. A call that was not let in is counted as a rejection and not
//! logged, because anyone can make any number of them.
//!
//! Must not know: what a method does.

use crate::listener::auth::methods::{METHODS, Needs, Role};
use crate::listener::connection_info::ConnectionInfo;
use http::{Request, Response};
use std::net::SocketAddr;
use tonic::{Code, Status};

/// A call that must be logged.
#[derive(Debug)]
pub(crate) struct Audit {
    method: &'static str,
    remote: Option<SocketAddr>,
    /// The first digits of the token's digest, as in the token file.
    token: Option<String>,
    is_answered: bool,
}

impl Audit {
    /// Creates the audit entry of a call that was let in by the token with this digest, if there are tokens. None: the
    /// call is not logged.
    pub(crate) fn of<T>(request: &Request<T>, token: Option<&[u8]>) -> Option<Self> {
        let is_it = |(method, needs): &&(&str, Needs)| {
            matches!(needs, Needs::Role(Role::Admin, _)) && *method == request.uri().path()
        };
        let (method, _) = METHODS.iter().find(is_it)?;
        let remote = request.extensions().get::<ConnectionInfo>().map(ConnectionInfo::remote);
        let digits = |digest: &[u8]| digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        Some(Self { method, remote, token: token.map(digits), is_answered: false })
    }

    /// Logs the result. A stream counts as answered when it starts.
    pub(crate) fn answered<T>(mut self, response: &Response<T>) {
        self.is_answered = true;
        let failed = Status::from_header_map(response.headers()).filter(|status| status.code() != Code::Ok);
        match failed {
            None => self.log("an administrative call", None),
            Some(status) => self.log("an administrative call failed", Some(status.message())),
        }
    }

    fn log(&self, what: &str, error: Option<&str>) {
        let method = self.method.rsplit('/').next().unwrap_or(self.method);
        let remote = self.remote.map(tracing::field::display);
        tracing::info!(method, remote, token = self.token.as_deref(), error, "{what}");
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        if !self.is_answered {
            self.log(
                "an administrative call was abandoned before its answer; it may have taken effect",
                None,
            );
        }
    }
}
