//! One request to a store with its deadline, and what its failure is called in chiplog.

use crate::http::{Refusal, refusal, remember_refusal};
use chiplog::{Error, ErrorKind, Result};
use object_store::Error as StoreError;
use object_store::client::HttpError;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Names a call in its errors, and bounds the time of its requests. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// For example `put object "o/7" of s3://bucket/prefix`.
    pub(crate) what: Arc<str>,
    pub(crate) limit: Duration,
    /// Added if the store does not answer.
    pub(crate) hint: &'static str,
}

/// Of a longer cause, this much of its beginning and twice that of its end are shown: some proxies answer with a whole page.
const CAUSE_CHARS: usize = 250;

/// Codes of a refusal with status 400 that concern the credentials.
const CREDENTIAL_CODES: [&str; 4] =
    ["ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "TokenRefreshRequired"];

/// Codes that say that there is no bucket, where 404 alone would mean that there is no object.
const BUCKET_CODES: [&str; 3] = ["NoSuchBucket", "ContainerNotFound", "InvalidBucketName"];

impl Call {
    /// Makes a request, with all attempts of the store's client.
    ///
    /// # Errors
    /// `Unavailable` after the time limit, or if the store cannot serve it now; `NotFound`: no object; `AlreadyExists`: the store
    /// refused it because of what is there, or because of another request at the same time; `PermissionDenied`;
    /// `InvalidArgument`: no bucket; `OutOfRange`: not that many bytes; `Io`.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = object_store::Result<T>>) -> Result<T> {
        remember_refusal(async {
            match timeout(self.limit, work).await {
                Ok(result) => result.map_err(|error| self.failure(error)),
                Err(_) => Err(self.silence()),
            }
        })
        .await
    }

    /// Bounds the time of a call that makes several requests.
    ///
    /// # Errors
    /// Those of the work; `Unavailable` after the time limit.
    pub(crate) async fn within_limit<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        timeout(self.limit, work).await.unwrap_or_else(|_| Err(self.silence()))
    }

    /// The error of a request that took too long.
    fn silence(&self) -> Error {
        let Self { what, limit, hint } = self;
        Error::new(
            ErrorKind::Unavailable,
            format!("cannot {what}: no answer within {limit:?}{hint}; try again"),
        )
    }

    fn failure(&self, error: StoreError) -> Error {
        let (kind, advice) = classify(&error, refusal().as_ref());
        let what = &self.what;
        let cause = shorten(tell(&error));
        let hint = if kind == ErrorKind::Unavailable { self.hint } else { "" };
        Error::with_cause(kind, format!("cannot {what}: {cause}{advice}{hint}"), error)
    }
}

/// A failure with those of its causes that it does not show by itself: a refused connection, a certificate. A general one is told by its
/// cause alone: of itself it says `Generic LocalFileSystem error`.
pub(crate) fn tell(error: &StoreError) -> String {
    let mut told = match error {
        StoreError::Generic { source, .. } => source.to_string(),
        other => other.to_string(),
    };
    let is_general = matches!(error, StoreError::Generic { .. });
    for cause in causes(error).skip(usize::from(is_general)) {
        let text = cause.to_string();
        if !told.contains(&text) {
            told.push_str(": ");
            told.push_str(&text);
        }
    }
    told
}

fn shorten(cause: String) -> String {
    let count = cause.chars().count();
    if count <= 3 * CAUSE_CHARS {
        return cause;
    }
    let chars = |skipped, taken| cause.chars().skip(skipped).take(taken);
    chars(0, CAUSE_CHARS)
        .chain(" … ".chars())
        .chain(chars(count - 2 * CAUSE_CHARS, 2 * CAUSE_CHARS))
        .collect()
}

/// The address at which a machine of Amazon has the credentials of its role.
const MACHINE_ROLE: &str = "169.254.169.254";
const NO_CREDENTIALS: &str = "; no credentials were given, and the machine has none: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give a \
                              file of credentials";

/// The kind of a failure, and what to do about it.
fn classify(error: &StoreError, refusal: Option<&Refusal>) -> (ErrorKind, &'static str) {
    let credentials = "; check the credentials and what they may do";
    let status = refusal.map_or(0, |refusal| refusal.status.as_u16());
    let code = refusal.map_or("", |refusal| &refusal.code);
    if BUCKET_CODES.contains(&code) {
        return (ErrorKind::InvalidArgument, "; make the bucket, or correct the location");
    }
    // The store's library asks the machine for credentials if none are given, and describes how that failed.
    if tell(error).contains(MACHINE_ROLE) {
        let is_refused = (400..500).contains(&status);
        let kind = if is_refused { ErrorKind::PermissionDenied } else { ErrorKind::Unavailable };
        return (kind, NO_CREDENTIALS);
    }
    match error {
        StoreError::NotFound { .. } => (ErrorKind::NotFound, ""),
        StoreError::AlreadyExists { .. }
        | StoreError::Precondition { .. }
        | StoreError::NotModified { .. } => (ErrorKind::AlreadyExists, ""),
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            (ErrorKind::PermissionDenied, credentials)
        }
        _ if find::<HttpError>(error).is_some() => (ErrorKind::Unavailable, "; try again"),
        _ => match status {
            401 | 403 => (ErrorKind::PermissionDenied, credentials),
            400 if CREDENTIAL_CODES.contains(&code) => (ErrorKind::PermissionDenied, credentials),
            408 | 429 | 500.. => (ErrorKind::Unavailable, "; try again"),
            416 => (ErrorKind::OutOfRange, ""),
            300..400 => (ErrorKind::Io, "; the bucket may be in another region: set the region"),
            _ => match find::<io::Error>(error).map(io::Error::kind) {
                Some(io::ErrorKind::PermissionDenied) => {
                    (ErrorKind::PermissionDenied, "; check the directory's owner")
                }
                _ => (ErrorKind::Io, ""),
            },
        },
    }
}

/// The first error of a type among an error's causes.
fn find<E: std::error::Error + 'static>(error: &StoreError) -> Option<&E> {
    causes(error).find_map(|error| error.downcast_ref())
}

/// An error and its causes.
fn causes(error: &StoreError) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;
    use object_store::client::HttpErrorKind;

    fn generic(source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        StoreError::Generic { store: "S3", source: Box::new(source) }
    }

    #[test]
    fn every_failure_has_its_kind() {
        let refused =
            |status, code: &str| Refusal { status: StatusCode::from_u16(status).unwrap(), code: code.into() };
        let other = || generic(io::Error::other("x"));
        let missing = || StoreError::NotFound { path: "o/7".into(), source: "x".into() };
        let denied = || StoreError::PermissionDenied { path: "o/7".into(), source: "x".into() };
        let silent = HttpError::new(HttpErrorKind::Timeout, io::Error::other("x"));
        let cases = [
            (missing(), Some(refused(404, "NoSuchKey")), ErrorKind::NotFound),
            (missing(), None, ErrorKind::NotFound),
            (missing(), Some(refused(404, "NoSuchBucket")), ErrorKind::InvalidArgument),
            (denied(), Some(refused(403, "AccessDenied")), ErrorKind::PermissionDenied),
            (other(), Some(refused(401, "")), ErrorKind::PermissionDenied),
            (other(), Some(refused(400, "ExpiredToken")), ErrorKind::PermissionDenied),
            (other(), Some(refused(400, "MalformedXML")), ErrorKind::Io),
            (other(), Some(refused(301, "PermanentRedirect")), ErrorKind::Io),
            (other(), Some(refused(416, "InvalidRange")), ErrorKind::OutOfRange),
            (other(), Some(refused(429, "")), ErrorKind::Unavailable),
            (other(), Some(refused(503, "SlowDown")), ErrorKind::Unavailable),
            (generic(silent), None, ErrorKind::Unavailable),
            (other(), None, ErrorKind::Io),
            (generic(io::Error::from_raw_os_error(13)), None, ErrorKind::PermissionDenied),
        ];
        for (error, refusal, kind) in cases {
            assert_eq!(classify(&error, refusal.as_ref()).0, kind, "{error} {refusal:?}");
        }
    }

    /// "Check the credentials" was the advice to a user who had given none.
    #[test]
    fn missing_credentials_are_named() {
        let asked = |status: u16| {
            let error = generic(io::Error::other("PUT http://169.254.169.254/latest/api/token"));
            let refusal = Refusal { status: StatusCode::from_u16(status).unwrap(), code: String::new() };
            classify(&error, Some(&refusal))
        };
        assert_eq!(asked(403), (ErrorKind::PermissionDenied, NO_CREDENTIALS));
        assert_eq!(asked(500), (ErrorKind::Unavailable, NO_CREDENTIALS));
    }

    /// The message began with `Generic LocalFileSystem error`.
    #[test]
    fn general_failure_is_told_by_its_cause() {
        let call = Call { what: "list objects in /store".into(), limit: Duration::from_secs(1), hint: "" };
        let cause = io::Error::other("Unable to walk dir: Input/output error (os error 5)");
        let error = StoreError::Generic { store: "LocalFileSystem", source: Box::new(cause) };
        assert_eq!(
            call.failure(error).to_string(),
            "cannot list objects in /store: Unable to walk dir: Input/output error (os error 5)"
        );
    }

    #[test]
    fn long_causes_are_cut_and_stay_the_source() {
        let call = Call { what: "put object o/7".into(), limit: Duration::from_secs(1), hint: "" };
        let error = call.failure(generic(io::Error::other("ä".repeat(5_000))));
        assert!((750..850).contains(&error.to_string().chars().count()));
        assert!(std::error::Error::source(&error).unwrap().to_string().len() > 10_000);
    }
}
