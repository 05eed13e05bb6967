//! Access: checks each call's permission. Uses bearer tokens with roles and scopes, and one table of the role that each
//! method needs and of what it reaches.
//!
//! Invariants:
//! - With tokens, a method that is not in the table is rejected for every caller.
//! - A token with a scope gets no method that reaches more than the logs of a request. Of the others each call has a
//!   [`Caller`], without which no service finds a log.
//! - A call continues as long as its token permits it: when tokens are replaced, open calls are checked again.
//!
//! **A new method gets its line in [`METHODS`], and nowhere else.**
//!
//! Must not know: files, connections.

pub use crate::listener::auth::methods::{METHODS, Needs, Reach, Role};
pub use crate::listener::auth::token_file::{Tokens, digest_of, line_of, new_token};
pub use crate::served::scope::Scope;

use crate::listener::auth::audit::Audit;
use crate::listener::auth::methods::requirement;
use crate::listener::auth::revocation::{Admitted, Open};
use crate::listener::auth::token_file::{Digest, sha256};
use crate::listener::connection_info::{Answering, ConnectionInfo, refuse_call};
use crate::served::caller::Caller;
use crate::served::refusals::{Refusal, Refusals};
use crate::wire::status::to_status;
use chiplog::{Error, ErrorKind};
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tower_layer::Layer;

/// The permissions of a listener. Its tokens can be replaced while it runs. `Send + Sync`.
///
/// ```
/// use chiplog_net::listener::auth::roles::{Access, AccessLayer};
/// let access = std::sync::Arc::new(Access::default()); // no tokens: every call is allowed
/// let server = chiplog_net::listener::server().layer(AccessLayer::new(access));
/// # drop(server);
/// ```
#[derive(Debug, Default)]
pub struct Access {
    tokens: RwLock<Option<Arc<Tokens>>>,
    open: Open<Pass>,
    refusals: Arc<Refusals>,
}

/// The digest of the token that let a call in, in its request's extensions.
#[derive(Clone, Copy)]
pub(crate) struct Bearer(pub(crate) Digest);

/// In a request's extensions: tokens are configured, and the call needs none.
#[derive(Clone, Copy)]
pub(crate) struct Tokenless;

/// The reason why a call was let in.
enum Way {
    /// There are no tokens.
    Open,
    /// There are tokens, and the call needs none.
    Tokenless,
    /// By a token.
    Token(Admitted<Pass>),
}

/// The credential of a call.
#[derive(Clone, Debug)]
struct Pass {
    token: Digest,
    method: &'static str,
    needs: (Role, Reach),
    caller: Caller,
}

impl Access {
    /// Uses these tokens; None: every call is allowed.
    pub fn new(tokens: Option<Tokens>, refusals: Arc<Refusals>) -> Self {
        Self { tokens: RwLock::new(tokens.map(Arc::new)), open: Open::default(), refusals }
    }

    /// Replaces the tokens. An open call ends as UNAUTHENTICATED if its token is gone, or as PERMISSION_DENIED if the
    /// token's role is now too low, or its scope has a log of the call no more. Calls that started while no tokens were
    /// configured continue.
    pub fn replace(&self, tokens: Tokens) {
        let tokens = Arc::new(tokens);
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Some(tokens.clone());
        self.open.end(|Pass { token, method, needs, caller }| {
            let scope = self.scope(&tokens, token, method, *needs);
            scope.and_then(|scope| caller.rescope(scope)).err()
        });
    }

    /// The logs that a token reaches with a method.
    ///
    /// # Errors
    /// UNAUTHENTICATED: the token is unknown. PERMISSION_DENIED: it has a lesser role, or a scope that the method exceeds.
    fn scope(
        &self,
        tokens: &Tokens,
        token: &Digest,
        method: &str,
        (needed, reach): (Role, Reach),
    ) -> Result<Scope, Status> {
        let granted = tokens.granted(token);
        let Some(role) = granted.role() else {
            return Err(
                self.unauthenticated("this server does not know the token: it is wrong, or was revoked")
            );
        };
        let Some(scope) = granted.scope(needed) else {
            let what =
                format!("this needs a token of role {needed}, and the token has role {role} ({method})");
            return Err(self.denied(what));
        };
        if reach == Reach::Server && !scope.is_everything() {
            let what = format!(
                "{method} reaches more than single named logs, and this token only named logs that begin with {scope}; use a token without a scope"
            );
            return Err(self.denied(what));
        }
        Ok(scope)
    }

    /// Checks that a call is permitted, apart from its logs.
    ///
    /// # Errors
    /// UNAUTHENTICATED, PERMISSION_DENIED.
    pub fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), Status> {
        self.admit(path, headers).map(drop)
    }

    /// Lets a call in.
    fn admit(&self, path: &str, headers: &HeaderMap) -> Result<Way, Status> {
        // Held until the call is registered as open: a replacement happens before, or finds the call.
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        let Some(tokens) = &*tokens else { return Ok(Way::Open) };
        let listed = requirement(path);
        if let Some((_, Needs::Nothing)) = listed {
            return Ok(Way::Tokenless);
        }
        let Some(token) = bearer(headers).map(sha256) else {
            return Err(self.unauthenticated("no token was sent; this server requires one"));
        };
        let Some((method, Needs::Role(role, reach))) = listed else {
            // A caller without a token does not even learn that.
            self.scope(tokens, &token, path, (Role::Read, Reach::NoLog))?;
            return Err(self.denied(format!("{path} is not allowed for any role")));
        };
        let scope = self.scope(tokens, &token, method, (role, reach))?;
        let caller = Caller::new(method, token, scope, reach == Reach::Leaders, self.refusals.clone());
        Ok(Way::Token(self.open.begin(Pass { token, method, needs: (role, reach), caller })))
    }

    fn unauthenticated(&self, what: &str) -> Status {
        self.refusals.count(Refusal::Unauthenticated);
        to_status(&Error::new(ErrorKind::Unauthenticated, what), None)
    }

    fn denied(&self, what: String) -> Status {
        self.refusals.count(Refusal::PermissionDenied);
        to_status(&Error::new(ErrorKind::PermissionDenied, what), None)
    }
}

/// The token of a call, if it has exactly one.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut shown = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (shown.next(), shown.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Rejects calls before any service sees them.
///
/// ```
/// use chiplog_net::listener::auth::roles::{Access, AccessLayer};
/// let layer = AccessLayer::new(std::sync::Arc::new(Access::default()));
/// # drop(layer);
/// ```
#[derive(Clone, Debug)]
pub struct AccessLayer {
    access: Arc<Access>,
}

impl AccessLayer {
    /// Rejects the calls that `access` rejects.
    pub fn new(access: Arc<Access>) -> Self {
        Self { access }
    }
}

impl<S> Layer<S> for AccessLayer {
    type Service = Accessed<S>;

    fn layer(&self, inner: S) -> Accessed<S> {
        Accessed { inner, access: self.access.clone() }
    }
}

/// A service within an [`AccessLayer`].
///
/// ```
/// use chiplog_net::listener::auth::roles::{Accessed, AccessLayer};
/// use tower_layer::Layer;
/// let accessed: Accessed<&str> = AccessLayer::new(Default::default()).layer("a service");
/// # drop(accessed);
/// ```
#[derive(Clone, Debug)]
pub struct Accessed<S> {
    inner: S,
    access: Arc<Access>,
}

impl<S> Service<Request<Body>> for Accessed<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answering<S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match self.access.admit(request.uri().path(), request.headers()) {
            Ok(Way::Open) => {
                if !METHODS.contains(&(request.uri().path(), Needs::Nothing)) {
                    prove(&request);
                }
                let audit = Audit::of(&request, None);
                let answering = self.inner.call(request);
                Box::pin(async move { answering.await.inspect(|response| log_answer(audit, response)) })
            }
            Ok(Way::Tokenless) => {
                request.extensions_mut().insert(Tokenless);
                Box::pin(self.inner.call(request))
            }
            Ok(Way::Token(call)) => {
                prove(&request);
                request.extensions_mut().insert(Bearer(call.by().token));
                request.extensions_mut().insert(call.by().caller.clone());
                let audit = Audit::of(&request, Some(&call.by().token));
                let answering = self.inner.call(request);
                Box::pin(async move {
                    let response = answering.await.inspect(|response| log_answer(audit, response))?;
                    Ok(response.map(|body| call.answer(body)))
                })
            }
            Err(status) => refuse_call(&request, status),
        }
    }
}

fn log_answer(audit: Option<Audit>, response: &Response<Body>) {
    if let Some(audit) = audit {
        audit.answered(response);
    }
}

/// The connection of a call that was let in keeps its place.
fn prove(request: &Request<Body>) {
    if let Some(arrival) = request.extensions().get::<ConnectionInfo>() {
        arrival.prove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use std::collections::BTreeSet;

    /// All compiled-in methods, except those between replicas, which have a separate listener.
    #[test]
    fn role_table_lists_exactly_the_methods() {
        let protos = prost_types::FileDescriptorSet::decode(crate::wire::proto::DESCRIPTORS).unwrap();
        let mut methods = BTreeSet::new();
        for file in &protos.file {
            for service in &file.service {
                for method in &service.method {
                    methods.insert(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
                }
            }
        }
        for call in ["Messages", "Host", "View", "AllowSystemLog"] {
            assert!(methods.remove(&format!("/chiplog.v1.Peer/{call}")), "{call}");
        }
        assert!(methods.len() > 15);
        let named: BTreeSet<String> = METHODS.iter().map(|(method, _)| (*method).to_owned()).collect();
        assert_eq!(named.len(), METHODS.len(), "a method is listed twice");
        let foreign = |method: &&String| method.starts_with("/grpc.");
        let ours: BTreeSet<String> = named.iter().filter(|m| !foreign(m)).cloned().collect();
        assert_eq!(ours, methods);
    }

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        values.iter().for_each(|v| _ = headers.append(AUTHORIZATION, v.parse().unwrap()));
        headers
    }

    fn access() -> Access {
        let line = |role: Role| format!("{role}:{}\n", digest_of(&format!("token of {role}")));
        let text: String = Role::ALL.into_iter().map(line).collect();
        Access::new(Some(text.parse().unwrap()), Arc::default())
    }

    /// Every role at every method: lower roles than needed are rejected, the others are let in.
    #[test]
    fn each_role_allows_its_methods_only() {
        let access = access();
        for (method, needs) in METHODS {
            for role in Role::ALL {
                let may = match needs {
                    Needs::Nothing => true,
                    Needs::Role(needed, _) => role >= *needed,
                };
                let checked = access.check(method, &headers(&[&format!("Bearer token of {role}")]));
                assert_eq!(checked.is_ok(), may, "{role} at {method}");
                if let Err(status) = checked {
                    assert_eq!(status.code(), tonic::Code::PermissionDenied);
                    assert_eq!(crate::wire::status::from_status(&status).kind(), ErrorKind::PermissionDenied);
                }
            }
        }
        let denied = access.refusals.read(Refusal::PermissionDenied);
        let unreached =
            |role: &Role| METHODS.iter().filter(|(_, n)| matches!(n, Needs::Role(r, _) if r > role)).count();
        assert_eq!(denied, Role::ALL.iter().map(unreached).sum::<usize>() as u64);
    }

    #[test]
    fn caller_without_a_known_token_is_rejected() {
        let access = access();
        for shown in [
            &[][..],
            &["Bearer token of Admin"],
            &["Bearer "],
            &["Bearer"],
            &["Basic token of admin"],
            &["token of admin"],
            &["Bearer token of admin", "Bearer token of admin"],
        ] {
            let status = access.check("/chiplog.v1.Log/Info", &headers(shown)).unwrap_err();
            assert_eq!(status.code(), tonic::Code::Unauthenticated, "{shown:?}");
            assert_eq!(crate::wire::status::from_status(&status).kind(), ErrorKind::Unauthenticated);
        }
        assert_eq!(access.refusals.read(Refusal::Unauthenticated), 7);
        access.check("/chiplog.v1.Log/Info", &headers(&["bearer token of read"])).unwrap();
        // No role allows a method that is not in the table; a caller without a token does not even learn that.
        let nowhere = "/chiplog.v1.Log/Nothing";
        let code = |shown: &[&str]| access.check(nowhere, &headers(shown)).unwrap_err().code();
        assert_eq!(code(&["Bearer token of admin"]), tonic::Code::PermissionDenied);
        assert_eq!(code(&[]), tonic::Code::Unauthenticated);
        assert!(
            Access::default().check(nowhere, &headers(&[])).is_ok(),
            "without tokens, the router answers"
        );
    }
}
