//! The meaning of a request that failed: the kind of the error, what to do, and whether another attempt can help.
//!
//! Must not know: raft, segments, which request it was.

use chiplog::{Error, ErrorKind};
use http::StatusCode;
use reqwest::Response;
use rustls::{AlertDescription, CertificateError, InvalidMessage};
use serde_json::Value;
use std::io;

/// The largest text of a refusal that is read.
const REFUSAL_BYTES_MAX: usize = 16 << 10;

/// The end of one attempt.
pub(super) enum Failed {
    /// Another attempt can help.
    Now(Error),
    /// It cannot.
    ForGood(Error),
}

/// The error of an answer that is no success. Only that to a HEAD request says nothing more than its status.
pub(super) async fn refused(url: &str, mut response: Response, is_head: bool) -> Failed {
    let status = response.status();
    let mut text = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        text.extend_from_slice(&piece);
        if text.len() > REFUSAL_BYTES_MAX {
            break;
        }
    }
    let told: Option<Value> = serde_json::from_slice(&text).ok();
    let word = |name| told.as_ref().and_then(|told| told.get(name)?.as_str());
    let named =
        word("error").and_then(|name| (1..).map_while(ErrorKind::from_code).find(|kind| kind.name() == name));
    if status == StatusCode::NOT_FOUND && named.is_none() && !is_head {
        return Failed::ForGood(stranger(url));
    }
    let kind = named.unwrap_or(match status.as_u16() {
        401 => ErrorKind::Unauthenticated,
        403 => ErrorKind::PermissionDenied,
        404 => ErrorKind::NotFound,
        416 => ErrorKind::OutOfRange,
        408 | 429 | 500.. => ErrorKind::Unavailable,
        _ => ErrorKind::Io,
    });
    let message = word("message").map_or_else(|| format!("status {status}"), str::to_owned);
    let advice = match kind {
        ErrorKind::Unauthenticated => "; give a token of the role read",
        _ => "",
    };
    let error = Error::new(kind, format!("cannot get {url}: {message}{advice}"));
    if kind.is_retryable() { Failed::Now(error) } else { Failed::ForGood(error) }
}

/// The end of an attempt that got no answer. TLS that client and server do not agree on is no better at the next attempt.
pub(super) fn unsent(url: &str, error: reqwest::Error) -> Failed {
    let (is_wrong, mismatch) = (error.is_builder(), mismatch_of(&error));
    let broken = broken(url, error);
    match mismatch {
        Some((kind, advice)) => {
            Failed::ForGood(Error::with_source(kind, format!("{broken}; {advice}"), &broken))
        }
        None if is_wrong => {
            Failed::ForGood(Error::with_source(ErrorKind::InvalidArgument, broken.to_string(), &broken))
        }
        None => Failed::Now(broken),
    }
}

/// If client and server do not agree on TLS: the kind of the error, and what to do.
fn mismatch_of(error: &(dyn std::error::Error + 'static)) -> Option<(ErrorKind, &'static str)> {
    let mut causes = std::iter::successors(Some(error), |error| {
        // The error within an I/O error is not its source.
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner as &(dyn std::error::Error + 'static)),
            None => error.source(),
        }
    });
    let wrong = |advice| Some((ErrorKind::InvalidArgument, advice));
    match causes.find_map(|error| error.downcast_ref())? {
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => wrong(
            "the server does not use TLS: is this its port for clients (listen.client)? Without TLS give http://",
        ),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => wrong("use an address that the server's certificate names (tls.certificate)"),
        rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => Some((
            ErrorKind::Unavailable,
            "the server needs a certificate that is valid now (tls.certificate), unless a clock is wrong",
        )),
        rustls::Error::InvalidCertificate(_) => {
            wrong("give the authority that has signed the server's certificate (tls.certificate)")
        }
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::DecryptError
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired,
        ) => wrong(
            "the server requires a certificate of this client that is valid now and that it trusts: give it with its key",
        ),
        _ => None,
    }
}

/// The error of a request that got no answer, or not all of it.
pub(super) fn broken(url: &str, error: reqwest::Error) -> Error {
    let error = error.without_url();
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    let told: Vec<String> = causes.map(ToString::to_string).collect();
    Error::with_cause(ErrorKind::Unavailable, format!("cannot get {url}: {}", told.join(": ")), error)
}

pub(super) fn stranger(url: &str) -> Error {
    let what = format!(
        "{url}: the answer is not one of a chiplog server: give its port for clients (listen.client), and a server of this version"
    );
    Error::new(ErrorKind::Unsupported, what)
}
