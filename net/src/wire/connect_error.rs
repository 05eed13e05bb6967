//! Causes: what is behind an error of a connection. What tonic says of one is seldom what is the matter: that lies below, and
//! where it is TLS it names bytes instead of what to do.
//!
//! Must not know: whom was dialled, and why.

use std::error::Error;
use std::fmt;
use std::io;
use tokio_rustls::rustls::{self, AlertDescription};

/// A server and whoever dials it do not mean the same by TLS. Waiting does not mend it.
///
/// ```
/// use chiplog_net::wire::connect_error::TlsMismatch;
/// let status = tonic::Status::unavailable("no route to host");
/// assert_eq!(TlsMismatch::of(&status), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsMismatch {
    /// Plain bytes were sent to who does not take them: a server that wants TLS, or none of ours.
    Wanted,
    /// The server does not speak TLS.
    NotSpoken,
    /// The server's certificate is not signed by the authority that is trusted.
    Untrusted,
    /// The server takes clients with a certificate that it trusts, and no others.
    Refused,
}

impl TlsMismatch {
    /// Whether it is what is behind an error, such as a status that tonic made or one of its transport.
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        chain(error).find_map(|cause| {
            if let Some(h2) = cause.downcast_ref::<h2::Error>() {
                // The first bytes of a TLS alert, read as a frame's head, announce more than any frame has.
                let nonsense = h2.is_library() && h2.reason() == Some(h2::Reason::FRAME_SIZE_ERROR);
                return nonsense.then_some(Self::Wanted);
            }
            match cause.downcast_ref::<rustls::Error>()? {
                rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
                    Some(Self::NotSpoken)
                }
                rustls::Error::InvalidCertificate(
                    rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature,
                ) => Some(Self::Untrusted),
                rustls::Error::AlertReceived(
                    AlertDescription::CertificateRequired
                    | AlertDescription::UnknownCA
                    | AlertDescription::DecryptError
                    | AlertDescription::BadCertificate,
                ) => Some(Self::Refused),
                _ => None,
            }
        })
    }
}

impl fmt::Display for TlsMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wanted => "what answers there may want TLS, and the options say none (`tls`)",
            Self::NotSpoken => "what answers there speaks no TLS, and the options want it (`tls`)",
            Self::Untrusted => {
                "the server's certificate is of another authority than the options name (`tls`)"
            }
            Self::Refused => "the server wants a certificate of the client, one that it trusts (`tls`)",
        })
    }
}

/// An error and all that is behind it, the nearest first.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        let error: &'a (dyn Error + 'static) = *error;
        // What an I/O error was made of is not its source, whose source that has.
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => error.source(),
        }
    })
}

/// The text of what is behind an error, deepest.
pub(crate) fn deepest(error: &(dyn Error + 'static)) -> String {
    chain(error).last().map_or_else(String::new, ToString::to_string)
}

/// An error with its causes: tonic's own say "transport error".
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

    #[test]
    fn what_is_within_an_io_error_is_found_and_told_once() {
        let alien = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let text = alien.to_string();
        let error = io::Error::new(io::ErrorKind::InvalidData, io::Error::other(alien));
        assert_eq!(TlsMismatch::of(&error), Some(TlsMismatch::NotSpoken));
        assert_eq!((causes(&error), deepest(&error)), (text.clone(), text));
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        assert_eq!(TlsMismatch::of(&unknown), Some(TlsMismatch::Untrusted));
        let expired = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        assert_eq!(TlsMismatch::of(&expired), None);
    }
}
