//! Connect error: the real cause of a connection error. tonic's own text seldom names it. The cause is in a source
//! error, and for TLS that names bytes instead of a remedy.
//!
//! Must not know: which server was dialed, and why.

use crate::wire::dates::utc;
use std::error::Error;
use std::fmt;
use std::io;
use tokio_rustls::rustls::{self, AlertDescription, CertificateError};

/// The TLS settings of a server and its client do not match. Waiting does not help.
///
/// ```
/// use chiplog_net::wire::connect_error::TlsMismatch;
/// let status = tonic::Status::unavailable("no route to host");
/// assert_eq!(TlsMismatch::of(&status), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsMismatch {
    /// Plain bytes were sent to a server that does not accept them: it requires TLS, or is not a chiplog server.
    Wanted,
    /// The server does not use TLS.
    NotSpoken,
    /// The server's certificate is not signed by the trusted authority.
    Untrusted,
    /// The server requires a client certificate that it trusts.
    Refused,
    /// The server's certificate has expired, by the local clock. Times are seconds since 1970.
    Expired {
        /// The last second of its validity.
        not_after: u64,
        /// The time of the check.
        now: u64,
    },
    /// The server's certificate is not valid yet, by the local clock.
    NotYetValid {
        /// The first second of its validity.
        not_before: u64,
        /// The time of the check.
        now: u64,
    },
    /// The server's certificate does not name the host in the address.
    OtherHost,
    /// The server reports that the client's certificate has expired, or is not valid yet.
    OwnExpired,
}

/// The text of hyper's error for a host whose address was not found, which has no kind of its own.
const UNKNOWN_HOST: &str = "dns error";

impl TlsMismatch {
    /// Returns the mismatch behind an error, such as a status that tonic made or an error of its transport.
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        chain(error).find_map(|cause| {
            if let Some(h2) = cause.downcast_ref::<h2::Error>() {
                // The first bytes of a TLS alert, parsed as a frame header, announce more than any frame has.
                let nonsense = h2.is_library() && h2.reason() == Some(h2::Reason::FRAME_SIZE_ERROR);
                return nonsense.then_some(Self::Wanted);
            }
            match cause.downcast_ref::<rustls::Error>()? {
                rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
                    Some(Self::NotSpoken)
                }
                rustls::Error::InvalidCertificate(error) => Self::of_certificate(error),
                rustls::Error::AlertReceived(
                    AlertDescription::CertificateRequired
                    | AlertDescription::UnknownCA
                    | AlertDescription::DecryptError
                    | AlertDescription::BadCertificate,
                ) => Some(Self::Refused),
                rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => Some(Self::OwnExpired),
                _ => None,
            }
        })
    }

    /// The error of the server's certificate.
    fn of_certificate(error: &CertificateError) -> Option<Self> {
        Some(match error {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::Untrusted,
            CertificateError::ExpiredContext { time, not_after } => {
                Self::Expired { not_after: not_after.as_secs(), now: time.as_secs() }
            }
            CertificateError::NotValidYetContext { time, not_before } => {
                Self::NotYetValid { not_before: not_before.as_secs(), now: time.as_secs() }
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::OtherHost
            }
            _ => return None,
        })
    }
}

impl fmt::Display for TlsMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wanted => f.write_str("the server may require TLS, and this client does not use it"),
            Self::NotSpoken => f.write_str("the server does not use TLS, and this client does"),
            Self::Untrusted => {
                f.write_str("the server's certificate is not signed by the authority that this client trusts")
            }
            Self::Refused => f.write_str("the server requires a client certificate that it trusts"),
            Self::Expired { not_after, now } => {
                let (not_after, now) = (utc(*not_after), utc(*now));
                write!(f, "the server's certificate expired at {not_after}; this machine's time is {now}")
            }
            Self::NotYetValid { not_before, now } => {
                let (not_before, now) = (utc(*not_before), utc(*now));
                write!(f, "the server's certificate is valid only from {not_before}; this machine's time is {now}")
            }
            Self::OtherHost => f.write_str("the server's certificate does not name the host in the address"),
            Self::OwnExpired => f.write_str(
                "the server rejects the client's certificate: by the server's clock it has expired or is not valid yet",
            ),
        }
    }
}

/// Whether an error is caused by TLS, on either side.
#[cfg(feature = "server")]
pub(crate) fn is_tls(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|cause| cause.is::<rustls::Error>())
}

/// Whether one side rejected the other's certificate: an operator must fix that.
#[cfg(feature = "server")]
pub(crate) fn is_certificate(error: &(dyn Error + 'static)) -> bool {
    chain(error).filter_map(|cause| cause.downcast_ref()).any(|error| match error {
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => true,
        rustls::Error::AlertReceived(alert) => matches!(
            alert,
            AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateRequired
                | AlertDescription::UnknownCA
                | AlertDescription::DecryptError
        ),
        _ => false,
    })
}

/// Whether the cause is the host's name, for which the system has no address.
pub fn is_unknown_host(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|cause| cause.to_string() == UNKNOWN_HOST)
}

/// Whether no connection was established: the system reports that nothing listens there, or that there is no route.
pub(crate) fn is_unconnected(error: &(dyn Error + 'static)) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    let is_unreachable =
        |e: &io::Error| matches!(e.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable);
    is_unknown_host(error) || chain(error).filter_map(|cause| cause.downcast_ref()).any(is_unreachable)
}

/// Whether a call was not sent, because there is no connection for it.
pub(crate) fn is_unsent(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|cause| cause.is::<tonic::ConnectError>())
}

/// An error and its causes, the nearest first.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        let error: &'a (dyn Error + 'static) = *error;
        // The error within an I/O error is not its source: `source()` skips it.
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => error.source(),
        }
    })
}

/// The text of the deepest cause.
pub(crate) fn deepest(error: &(dyn Error + 'static)) -> String {
    chain(error).last().map_or_else(String::new, ToString::to_string)
}

/// An error with its causes: tonic's own text is "transport error".
#[cfg(feature = "server")]
pub(crate) fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in chain(error).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{colon}{cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio_rustls::rustls::pki_types::UnixTime;

    #[test]
    fn cause_within_an_io_error_is_found_and_shown_once() {
        let alien = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let text = alien.to_string();
        let error = io::Error::new(io::ErrorKind::InvalidData, io::Error::other(alien));
        assert_eq!(TlsMismatch::of(&error), Some(TlsMismatch::NotSpoken));
        assert_eq!((causes(&error), deepest(&error)), (text.clone(), text));
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        assert_eq!(TlsMismatch::of(&unknown), Some(TlsMismatch::Untrusted));
        let revoked = rustls::Error::InvalidCertificate(rustls::CertificateError::Revoked);
        assert_eq!(TlsMismatch::of(&revoked), None);
    }

    /// An expired certificate was reported as a server that does not answer.
    #[test]
    fn error_of_an_expired_certificate_shows_the_times() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let (time, not_after, not_before) = (at(86_400), at(3600), at(172_800));
        for (error, wanted) in [
            (CertificateError::ExpiredContext { time, not_after }, "expired at 1970-01-01T01:00:00Z"),
            (CertificateError::NotValidYetContext { time, not_before }, "only from 1970-01-03T00:00:00Z"),
        ] {
            let text = TlsMismatch::of(&rustls::Error::InvalidCertificate(error)).unwrap().to_string();
            assert!(text.contains(wanted) && text.ends_with("time is 1970-01-02T00:00:00Z"), "{text}");
        }
        let alert = rustls::Error::AlertReceived(AlertDescription::CertificateExpired);
        assert_eq!(TlsMismatch::of(&alert), Some(TlsMismatch::OwnExpired));
    }
}
