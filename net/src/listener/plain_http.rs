//! Plain HTTP: GET and HEAD of clients that speak no gRPC, over HTTP/1 and HTTP/2, through the same limits and tokens as calls.
//!
//! ```text
//! request ──> here: gRPC over HTTP/1 is refused ──> calls ──> access ──> stream budget ──> service
//! answer  <── here: a gRPC status becomes a status of HTTP with a text <── the same
//! ```
//!
//! | error kind | status |
//! |---|---|
//! | `InvalidArgument` | 400 |
//! | `Unauthenticated` | 401, with `WWW-Authenticate` |
//! | `PermissionDenied`, and a request of a web page | 403 |
//! | `NotFound` | 404 |
//! | another method than GET and HEAD | 405 |
//! | the request has a body | 413 |
//! | `Unsupported` | 501 |
//! | `Busy`, `Unavailable`, `Timeout` and others that another attempt can cure | 503, with `Retry-After` |
//! | others | 500 |
//!
//! Invariants:
//! - An answer that fails once it has begun breaks off: over HTTP/1 its connection is closed, over HTTP/2 its stream is reset. No client
//!   takes a part of an object for the whole.
//! - No call of gRPC is served over HTTP/1, which could not carry its status.
//!
//! Must not know: what is served.

use crate::listener::auth::methods::{OBJECTS, SEGMENTS, is_plain_http};
use crate::listener::connection_info::Answering;
use crate::wire::status::from_status;
use bytes::Bytes;
use chiplog::ErrorKind;
use http::header::{
    ALLOW, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::{Body as _, Frame, SizeHint};
use std::fmt::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tower_layer::Layer;

/// After how many seconds another attempt is worth it.
const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// Says for whom a browser makes a request (Fetch Metadata).
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Lets plain HTTP through beside gRPC. The outermost layer of a server; part of [`listener::server`](crate::listener::server).
///
/// ```
/// use chiplog_net::listener::plain_http::PlainHttpLayer;
/// let server = tonic::transport::Server::builder().accept_http1(true).layer(PlainHttpLayer);
/// # drop(server);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainHttpLayer;

impl<S> Layer<S> for PlainHttpLayer {
    type Service = PlainHttp<S>;

    fn layer(&self, inner: S) -> PlainHttp<S> {
        PlainHttp { inner }
    }
}

/// A service within a [`PlainHttpLayer`].
///
/// ```
/// use chiplog_net::listener::plain_http::{PlainHttp, PlainHttpLayer};
/// use tower_layer::Layer;
/// let plain: PlainHttp<&str> = PlainHttpLayer.layer("a service");
/// # drop(plain);
/// ```
#[derive(Clone, Debug)]
pub struct PlainHttp<S> {
    inner: S,
}

impl<S> Service<Request<Body>> for PlainHttp<S>
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

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        if request.version() >= Version::HTTP_2 && !is_plain_http(path) {
            return Box::pin(self.inner.call(request));
        }
        let is_head = request.method() == Method::HEAD;
        if let Some(refused) = refuse(&request) {
            return Box::pin(std::future::ready(Ok(without_body_if(is_head, refused))));
        }
        let answering = self.inner.call(request);
        Box::pin(async move { Ok(without_body_if(is_head, plain(answering.await?))) })
    }
}

/// The answer to a request that no service gets.
fn refuse(request: &Request<Body>) -> Option<Response<Body>> {
    let path = request.uri().path();
    let mut response = if !is_plain_http(path) {
        let what = format!(
            "there is nothing at this path over HTTP/1: objects are at {OBJECTS}, segments at {SEGMENTS}, and calls of gRPC need HTTP/2"
        );
        refusal(StatusCode::NOT_FOUND, ErrorKind::NotFound, &what)
    } else if is_of_a_page(request.headers()) {
        let what = "web pages get no objects: this request has the header Origin or Sec-Fetch-Site of one";
        refusal(StatusCode::FORBIDDEN, ErrorKind::PermissionDenied, what)
    } else if request.method() != Method::GET && request.method() != Method::HEAD {
        let what = format!(
            "{OBJECTS} and {SEGMENTS} are for GET and HEAD: what is there is written by servers alone"
        );
        let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED, ErrorKind::InvalidArgument, &what);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        response
    } else if has_body(request) {
        let what = "a request for objects has no body: send it without one";
        refusal(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::TooLarge, what)
    } else {
        return None;
    };
    if request.version() < Version::HTTP_2 {
        // The bytes that follow on the connection are not read as further requests.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Some(response)
}

/// Whether a web page makes a request, and not a program or the person at a browser.
fn is_of_a_page(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    headers.contains_key(ORIGIN) || sites.any(|site| site != "none")
}

/// Whether a request says that it has a body. Over HTTP/2 one without a body can end with an empty frame, which is not known yet; a body
/// that is sent nevertheless is dropped with its stream. Over HTTP/1 its bytes would be on the connection.
fn has_body(request: &Request<Body>) -> bool {
    match request.version() < Version::HTTP_2 {
        true => !request.body().is_end_stream(),
        false => request.headers().get(CONTENT_LENGTH).is_some_and(|length| length != "0"),
    }
}

/// Makes a service's answer one of plain HTTP.
fn plain(response: Response<Body>) -> Response<Body> {
    match Status::from_header_map(response.headers()) {
        Some(status) => refused(&status),
        None => not_guessed(response.map(|body| Body::new(PlainBody { body, is_broken: false }))),
    }
}

/// Keeps browsers from taking an answer for a page or a script because of its bytes.
fn not_guessed(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The answer that a status is.
fn refused(status: &Status) -> Response<Body> {
    let error = from_status(status);
    let kind = error.kind();
    let code = match kind {
        ErrorKind::InvalidArgument => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        kind if kind.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut response = refusal(code, kind, &error.to_string());
    match code {
        StatusCode::UNAUTHORIZED => {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            response.headers_mut().insert(RETRY_AFTER, RETRY_SECONDS);
        }
        _ => {}
    }
    response
}

/// An error as a short JSON object.
fn refusal(code: StatusCode, kind: ErrorKind, what: &str) -> Response<Body> {
    let text = format!("{{\"error\":{},\"message\":{}}}\n", json_text(kind.name()), json_text(what));
    let length = text.len();
    let mut response = Response::new(Body::new(Once(Some(text.into()))));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CONTENT_LENGTH, length.into());
    not_guessed(response)
}

fn without_body_if(is_head: bool, response: Response<Body>) -> Response<Body> {
    if is_head { response.map(|_| Body::empty()) } else { response }
}

/// A text in JSON, with its quotes.
pub(crate) fn json_text(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c if c < ' ' => _ = write!(quoted, "\\u{:04x}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A body of one piece.
struct Once(Option<Bytes>);

impl http_body::Body for Once {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

/// A body that breaks off where one of gRPC ends with a status.
struct PlainBody {
    body: Body,
    is_broken: bool,
}

impl http_body::Body for PlainBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_broken {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let broken = match &frame {
            Some(Ok(frame)) => frame.trailers_ref().map(|trailers| {
                let unknown = || Status::unknown("the answer ended without a reason");
                Status::from_header_map(trailers).unwrap_or_else(unknown)
            }),
            _ => None,
        };
        Poll::Ready(match broken {
            Some(status) => {
                self.is_broken = true;
                tracing::debug!(%status, "an answer over plain HTTP broke off");
                Some(Err(status))
            }
            None => frame,
        })
    }

    fn is_end_stream(&self) -> bool {
        !self.is_broken && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::status::to_status;
    use chiplog::Error;

    #[test]
    fn texts_are_json() {
        for (text, quoted) in [
            ("", r#""""#),
            ("plain é", r#""plain é""#),
            ("a \"b\" \\ c", r#""a \"b\" \\ c""#),
            ("1\n2\t\u{1}", r#""1\n2\u0009\u0001""#),
        ] {
            assert_eq!(json_text(text), quoted);
        }
    }

    #[test]
    fn every_kind_has_a_status_of_an_error() {
        let all: Vec<ErrorKind> = (1..).map_while(ErrorKind::from_code).collect();
        assert!(all.len() >= 30);
        for kind in all {
            let response = refused(&to_status(&Error::new(kind, "because"), None));
            let code = response.status();
            assert!(code.is_client_error() || code.is_server_error(), "{kind}");
            assert_eq!(response.headers().contains_key(RETRY_AFTER), code == StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(response.headers().contains_key(WWW_AUTHENTICATE), code == StatusCode::UNAUTHORIZED);
        }
        let code = |kind| refused(&to_status(&Error::new(kind, "because"), None)).status().as_u16();
        assert_eq!(code(ErrorKind::Busy), 503);
        assert_eq!(code(ErrorKind::Unavailable), 503);
        assert_eq!(code(ErrorKind::NotFound), 404);
        assert_eq!(code(ErrorKind::Corrupt), 500);
        assert_eq!(code(ErrorKind::PermissionDenied), 403);
    }
}
