//! Where a vault is: the text that a user writes, taken apart.
//!
//! Must not know: how stores are reached.

use chiplog::{Error, ErrorKind, Result};
use std::fmt;
use std::path::PathBuf;

/// A parsed location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// A bucket of a provider, and the prefix in it: without slashes at its ends, or empty.
    Bucket { provider: Provider, bucket: String, prefix: String },
    /// An absolute path.
    Directory(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    S3,
    Google,
    Azure,
}

const FORMS: &str = "use s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, file:///DIRECTORY or an absolute path";

impl Location {
    /// Parses a location.
    ///
    /// # Errors
    /// `InvalidArgument`: it has none of the forms.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if text.starts_with('/') {
            return Ok(Self::Directory(text.into()));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(invalid(format!("{text:?} is no location of an object store: {FORMS}")));
        };
        let provider = match scheme {
            "s3" => Provider::S3,
            "gs" => Provider::Google,
            "az" => Provider::Azure,
            "file" if rest.starts_with('/') => return directory(text),
            "file" => {
                return Err(invalid(format!("{text:?} names no local directory: use file:///DIRECTORY")));
            }
            // The text is not shown: a pasted URL can contain a secret.
            _ => {
                return Err(invalid(format!(
                    "{scheme:?} is no scheme of an object store's location: {FORMS}"
                )));
            }
        };
        if rest.contains(['@', '?', '#']) {
            let what = "an object store's location has a bucket and a prefix only: give keys and endpoint as options, or in the environment";
            return Err(invalid(what));
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(invalid(format!("{text:?} names no bucket: {FORMS}")));
        }
        if !bucket.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-')) {
            return Err(invalid(format!(
                "{bucket:?} is no name of a bucket: it has letters, digits and . _ - only"
            )));
        }
        let prefix = prefix.trim_end_matches('/');
        if !prefix.is_empty() && prefix.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(invalid(format!("{text:?}: a part of the prefix is empty, . or ..: leave it out")));
        }
        Ok(Self::Bucket { provider, bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

/// The directory of this machine in which an object store at this location is. None: it is elsewhere, or the text is no
/// location.
#[doc(hidden)]
pub fn local_directory(location: &str) -> Option<PathBuf> {
    match Location::parse(location) {
        Ok(Location::Directory(directory)) => Some(directory),
        _ => None,
    }
}

/// Parses `file:///directory`, in which `%20` is a space.
fn directory(text: &str) -> Result<Location> {
    let path = url::Url::parse(text).ok().and_then(|url| url.to_file_path().ok());
    path.map(Location::Directory)
        .ok_or_else(|| invalid(format!("{text:?} names no local directory: use file:///DIRECTORY")))
}

pub(crate) fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}

impl Provider {
    /// The name for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::S3 => "S3",
            Self::Google => "Google Cloud Storage",
            Self::Azure => "Azure",
        }
    }

    fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bucket { provider, bucket, prefix } if prefix.is_empty() => {
                write!(f, "{}://{bucket}", provider.scheme())
            }
            Self::Bucket { provider, bucket, prefix } => {
                write!(f, "{}://{bucket}/{prefix}", provider.scheme())
            }
            Self::Directory(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_parsed() {
        let bucket = |provider, bucket: &str, prefix: &str| Location::Bucket {
            provider,
            bucket: bucket.into(),
            prefix: prefix.into(),
        };
        let cases = [
            ("s3://b/p/q", bucket(Provider::S3, "b", "p/q"), "s3://b/p/q"),
            ("s3://b/p/", bucket(Provider::S3, "b", "p"), "s3://b/p"),
            ("gs://b", bucket(Provider::Google, "b", ""), "gs://b"),
            ("az://c/", bucket(Provider::Azure, "c", ""), "az://c"),
            ("file:///a/b%20c", Location::Directory("/a/b c".into()), "/a/b c"),
            ("/a/b%20c", Location::Directory("/a/b%20c".into()), "/a/b%20c"),
        ];
        for (text, expected, shown) in cases {
            let location = Location::parse(text).unwrap();
            assert_eq!(location, expected);
            assert_eq!(location.to_string(), shown);
        }
    }

    #[test]
    fn other_texts_are_refused_without_their_secrets() {
        let wrong = [
            "",
            "relative/dir",
            "s3:/b",
            "s3://",
            "s3:///p",
            "s3://b c/p",
            "s3://b//p",
            "s3://b/p/../q",
            "S3://b",
            "http://b/p",
            "file://host/dir",
            "file://",
            "memory:",
            "s3://b?x=hidden",
            "s3://key:hidden@b/p",
            "s3a://key:hidden@b",
        ];
        for text in wrong {
            let error = Location::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text}");
            assert!(!error.to_string().contains("hidden"), "{error}");
        }
    }
}
