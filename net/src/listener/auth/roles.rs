//! Access: checks each call's permission. Uses bearer tokens with roles, and one table of the role that each method
//! needs.
//!
//! Invariants:
//! - With tokens, a method that is not in the table is rejected for every caller.
//! - Only digests of tokens are stored. A token is compared by its digest, in constant time, with all known ones.
//! - A call continues as long as its token permits it: when tokens are replaced, open calls are checked again.
//!
//! **A new method gets its line in [`METHODS`], and nowhere else.**
//!
//! Must not know: files, connections.

pub use crate::listener::auth::methods::{METHODS, Needs, Role};

use crate::listener::auth::audit::Audit;
use crate::listener::auth::revocation::{Admitted, Open};
use crate::listener::connection_info::ConnectionInfo;
use crate::served::refusals::{Refusal, Refusals};
use crate::wire::status::to_status;
use chiplog::{Error, ErrorKind, Result};
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use std::fmt;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tower_layer::Layer;

/// Creates a new token: 256 random bits as text.
///
/// # Errors
/// `Io`: the system returned no random numbers.
///
/// ```
/// let token = chiplog_net::listener::auth::roles::new_token()?;
/// assert!(token.starts_with("chiplog-") && token.len() == 72);
/// # Ok::<(), chiplog::Error>(())
/// ```
pub fn new_token() -> Result<String> {
    let mut bits = [0; 32];
    let filled = SystemRandom::new().fill(&mut bits);
    filled.map_err(|_| Error::new(ErrorKind::Io, "the system returned no random numbers"))?;
    Ok(format!("chiplog-{}", HEXLOWER.encode(&bits)))
}

/// A token's digest, which servers store: SHA-256, in hexadecimal.
///
/// ```
/// let digest = chiplog_net::listener::auth::roles::digest_of("secret");
/// assert!(digest.starts_with("2bb80d537b1da3e3"));
/// ```
pub fn digest_of(token: &str) -> String {
    HEXLOWER.encode(&sha256(token))
}

/// The tokens of a server, by their digests. `Send + Sync`.
///
/// ```
/// use chiplog_net::listener::auth::roles::{Role, Tokens, digest_of};
/// let tokens: Tokens = format!("# the owner\nread:{}\n", digest_of("secret")).parse()?;
/// assert_eq!(tokens.role_of("secret"), Some(Role::Read));
/// assert_eq!(tokens.role_of("Secret"), None);
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Tokens {
    known: Vec<(Role, Digest)>,
}

/// A token's SHA-256.
type Digest = [u8; SHA256_OUTPUT_LEN];

fn sha256(token: &str) -> Digest {
    let mut bytes = [0; SHA256_OUTPUT_LEN];
    bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    bytes
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("count", &self.known.len()).finish()
    }
}

impl Tokens {
    /// The number of tokens; at least one.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns the role of a token; None: it is unknown. Takes the same time for any token of the same length.
    pub fn role_of(&self, token: &str) -> Option<Role> {
        self.role_by(&sha256(token))
    }

    fn role_by(&self, shown: &Digest) -> Option<Role> {
        let mut found = 0_u8;
        for (role, known) in &self.known {
            let same = shown.ct_eq(known);
            found = u8::conditional_select(&found, &found.max(*role as u8), same);
        }
        Role::ALL.into_iter().find(|role| *role as u8 == found)
    }
}

impl FromStr for Tokens {
    type Err = Error;

    /// One token per line: `role:digest`, the digest in 64 hexadecimal digits. Empty lines, and everything after `#`,
    /// are ignored.
    fn from_str(text: &str) -> Result<Self> {
        let mut known = Vec::new();
        for (n, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            // The error does not repeat the text: it may be a token that was put there by mistake.
            let wrong =
                |what: String| Error::new(ErrorKind::InvalidArgument, format!("line {}: {what}", n + 1));
            let Some((role, digits)) = line.split_once(':') else {
                return Err(wrong("expected role:digest".into()));
            };
            let role = role.trim().parse().map_err(|_| {
                wrong("the part before the colon must be a role: read, append or admin".into())
            })?;
            let bytes = HEXLOWER_PERMISSIVE.decode(digits.trim().as_bytes());
            let digest = bytes.ok().and_then(|bytes| Digest::try_from(bytes).ok()).ok_or_else(|| {
                wrong("a digest must have 64 hexadecimal digits; make one with `chiplog token`".into())
            })?;
            known.push((role, digest));
        }
        if known.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the file has no token: every client would be rejected",
            ));
        }
        Ok(Self { known })
    }
}

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
#[derive(Clone, Copy, Debug)]
struct Pass {
    token: Digest,
    needed: Role,
}

impl Access {
    /// Uses these tokens; None: every call is allowed.
    pub fn new(tokens: Option<Tokens>, refusals: Arc<Refusals>) -> Self {
        Self { tokens: RwLock::new(tokens.map(Arc::new)), open: Open::default(), refusals }
    }

    /// Replaces the tokens. An open call ends as UNAUTHENTICATED if its token is gone, or as PERMISSION_DENIED if the
    /// token's role is now too low. Calls that started while no tokens were configured continue.
    pub fn replace(&self, tokens: Tokens) {
        let tokens = Arc::new(tokens);
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Some(tokens.clone());
        self.open.end(|pass| match tokens.role_by(&pass.token) {
            None => Some(self.unauthenticated("the token was revoked")),
            Some(role) if role < pass.needed => {
                let needed = pass.needed;
                Some(self.denied(format!(
                    "the call needs a token of role {needed}; this token now has role {role}"
                )))
            }
            Some(_) => None,
        });
    }

    /// Checks that a call is permitted.
    ///
    /// # Errors
    /// UNAUTHENTICATED, PERMISSION_DENIED.
    pub fn check(&self, path: &str, headers: &HeaderMap) -> std::result::Result<(), Status> {
        self.admit(path, headers).map(drop)
    }

    /// Lets a call in.
    fn admit(&self, path: &str, headers: &HeaderMap) -> std::result::Result<Way, Status> {
        // Held until the call is registered as open: a replacement happens before, or finds the call.
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        let Some(tokens) = &*tokens else { return Ok(Way::Open) };
        let needs = METHODS.iter().find(|(method, _)| *method == path).map(|(_, needs)| *needs);
        if needs == Some(Needs::Nothing) {
            return Ok(Way::Tokenless);
        }
        let Some(token) = bearer(headers).map(sha256) else {
            return Err(self.unauthenticated("no token was sent; this server requires one"));
        };
        let Some(role) = tokens.role_by(&token) else {
            return Err(self.unauthenticated("this server does not know the token"));
        };
        match needs {
            Some(Needs::Role(needed)) if role >= needed => {
                Ok(Way::Token(self.open.begin(Pass { token, needed })))
            }
            Some(Needs::Role(needed)) => {
                Err(self.denied(format!("{path} needs a token of role {needed}; this token has role {role}")))
            }
            _ => Err(self.denied(format!("{path} is not allowed for any role"))),
        }
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

type Answering<E> = Pin<Box<dyn Future<Output = std::result::Result<Response<Body>, E>> + Send>>;

impl<S> Service<Request<Body>> for Accessed<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answering<S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<std::result::Result<(), S::Error>> {
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
                let audit = Audit::of(&request, Some(&call.by().token));
                let answering = self.inner.call(request);
                Box::pin(async move {
                    let response = answering.await.inspect(|response| log_answer(audit, response))?;
                    Ok(response.map(|body| call.answer(body)))
                })
            }
            Err(status) => {
                if let Some(arrival) = request.extensions().get::<ConnectionInfo>() {
                    arrival.refused(request.uri().path());
                }
                Box::pin(std::future::ready(Ok(status.into_http())))
            }
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
        assert!(methods.remove("/chiplog.v1.Peer/Messages") && methods.remove("/chiplog.v1.Peer/Host"));
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
                    Needs::Role(needed) => role >= *needed,
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
            |role: &Role| METHODS.iter().filter(|(_, n)| matches!(n, Needs::Role(r) if r > role)).count();
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

    #[test]
    fn token_file_errors_do_not_repeat_its_lines() {
        let digest = digest_of("t");
        let good: Tokens =
            format!("\n# people\n read : {digest} # Ann\nadmin:{}\n", digest.to_uppercase()).parse().unwrap();
        assert_eq!((good.len(), good.role_of("t")), (2, Some(Role::Admin)), "the highest counts");
        for (bad, word) in [
            (String::new(), "no token"),
            ("# nothing".into(), "no token"),
            (digest.clone(), "role:digest"),
            (format!("\nroot:{digest}"), "line 2: the part before the colon"),
            ("read:secret".into(), "64"),
            (format!("read:{digest}0"), "64"),
            (format!("read:{}", "+1".repeat(32)), "64"),
        ] {
            let error = bad.parse::<Tokens>().unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains("secret"), "{bad}: {error}");
        }
    }
}
