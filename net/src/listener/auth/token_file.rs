//! The file of tokens: the tokens that a server knows, each by its digest, with a role and a scope.
//!
//! ```text
//! append:9f86d081…0a08  # the ingest of shop 7
//! read:60303ae2…9752 logs=orders,tenant-7/  # reports
//! ```
//!
//! Invariants:
//! - Only digests of tokens are stored. A token is compared by its digest, in constant time, with all known ones.
//! - An error does not repeat the file's text, which may be a token that was put there by mistake.
//!
//! Must not know: files, connections.

use crate::listener::auth::methods::Role;
use crate::served::scope::Scope;
use chiplog::{Error, ErrorKind, Result};
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use std::fmt;
use std::str::FromStr;
use subtle::ConstantTimeEq as _;

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

/// The line by which servers know a token.
///
/// ```
/// use chiplog_net::listener::auth::roles::{Role, Scope, Tokens, line_of};
/// let line = line_of("secret", Role::Append, &Scope::of(["tenant-7/"])?);
/// assert!(line.starts_with("append:2bb80d53") && line.ends_with(" logs=tenant-7/"));
/// assert!(line.parse::<Tokens>().is_ok());
/// # Ok::<(), chiplog::Error>(())
/// ```
pub fn line_of(token: &str, role: Role, scope: &Scope) -> String {
    let logs = if scope.is_everything() { String::new() } else { format!(" {LOGS}{scope}") };
    format!("{role}:{}{logs}", digest_of(token))
}

/// Precedes the scope in a line.
const LOGS: &str = "logs=";

/// A token's SHA-256.
pub(super) type Digest = [u8; SHA256_OUTPUT_LEN];

pub(super) fn sha256(token: &str) -> Digest {
    let mut bytes = [0; SHA256_OUTPUT_LEN];
    bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    bytes
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
    lines: Vec<Line>,
}

#[derive(Clone, PartialEq, Eq)]
struct Line {
    role: Role,
    token: Digest,
    scope: Scope,
}

/// The permissions of a token: those of all its lines.
#[derive(Debug)]
pub(super) struct Granted<'a> {
    lines: Vec<(Role, &'a Scope)>,
}

impl Granted<'_> {
    /// The highest role; None: the token is unknown.
    pub(super) fn role(&self) -> Option<Role> {
        self.lines.iter().map(|(role, _)| *role).max()
    }

    /// The logs that the token reaches with calls that need this role; None: it has none that is high enough.
    pub(super) fn scope(&self, needed: Role) -> Option<Scope> {
        let scopes = self.lines.iter().filter(|(role, _)| *role >= needed).map(|(_, scope)| *scope);
        scopes.fold(None, |sum: Option<Scope>, scope| {
            Some(sum.map_or_else(|| scope.clone(), |sum| sum.or(scope)))
        })
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("count", &self.lines.len()).finish()
    }
}

impl Tokens {
    /// The number of lines with a token; at least one.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns the highest role of a token; None: it is unknown. Takes the same time for any unknown token of the same
    /// length.
    pub fn role_of(&self, token: &str) -> Option<Role> {
        self.granted(&sha256(token)).role()
    }

    pub(super) fn granted(&self, token: &Digest) -> Granted<'_> {
        let is_it = |line: &&Line| bool::from(token.ct_eq(&line.token));
        Granted { lines: self.lines.iter().filter(is_it).map(|line| (line.role, &line.scope)).collect() }
    }
}

impl FromStr for Tokens {
    type Err = Error;

    /// One token a line: `role:digest`, the digest in 64 hexadecimal digits, then perhaps `logs=` and prefixes of log names
    /// with commas between them. Empty lines, and everything after `#`, are ignored. Lines of the same token add up.
    fn from_str(text: &str) -> Result<Self> {
        let mut lines = Vec::new();
        for (n, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let parsed = Line::parse(line);
            lines.push(
                parsed.map_err(|what| {
                    Error::new(ErrorKind::InvalidArgument, format!("line {}: {what}", n + 1))
                })?,
            );
        }
        if lines.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the file has no token: every client would be rejected",
            ));
        }
        Ok(Self { lines })
    }
}

impl Line {
    fn parse(line: &str) -> Result<Self, String> {
        let (role, rest) = line.split_once(':').ok_or("expected role:digest")?;
        let role = role.trim().parse();
        let role = role.map_err(|_| "the part before the colon must be a role: read, append or admin")?;
        let mut words = rest.split_whitespace();
        let bytes = HEXLOWER_PERMISSIVE.decode(words.next().unwrap_or_default().as_bytes());
        let token = bytes.ok().and_then(|bytes| Digest::try_from(bytes).ok());
        let token = token.ok_or("a digest must have 64 hexadecimal digits; make one with `chiplog token`")?;
        let scope = match (words.next(), words.next()) {
            (None, _) => Scope::default(),
            (Some(word), None) if word.starts_with(LOGS) => {
                let scope = Scope::of(word[LOGS.len()..].split(','));
                scope.map_err(|e| format!("{e}; `chiplog token --logs PREFIX` writes the line"))?
            }
            _ => {
                return Err(
                    "behind the digest expected nothing, or one logs=PREFIX,PREFIX… without spaces, and a \
                            comment behind #"
                        .into(),
                );
            }
        };
        Ok(Self { role, token, scope })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("read:".into(), "64"),
            (format!("read:{digest}0"), "64"),
            (format!("read:{}", "+1".repeat(32)), "64"),
            (format!("read:{digest} secret"), "logs=PREFIX"),
            (format!("read:{digest} logs= secret"), "logs=PREFIX"),
            (format!("read:{digest} logs=a logs=secret"), "logs=PREFIX"),
            (format!("read:{digest} logs=a, secret"), "logs=PREFIX"),
            (format!("read:{digest} LOGS=secret"), "logs=PREFIX"),
            (format!("read:{digest} logs="), "prefix 1 of the scope is empty"),
            (format!("\n\nread:{digest} logs=a,"), "line 3: prefix 2 of the scope is empty"),
            (format!("read:{digest} logs=a,secret/x"), "line 1: prefix 2 of the scope"),
            (format!("read:{digest} logs=_secret"), "begins with _"),
        ] {
            let error = bad.parse::<Tokens>().unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains("secret"), "{bad}: {error}");
        }
    }

    #[test]
    fn lines_of_a_token_add_up() {
        let line = |role, prefixes: &[&str]| {
            let scope =
                if prefixes.is_empty() { Ok(Scope::default()) } else { Scope::of(prefixes.iter().copied()) };
            line_of("t", role, &scope.unwrap())
        };
        let scopes = |lines: &[String]| {
            let tokens: Tokens = lines.join("  # a comment\n").parse().unwrap();
            let granted = tokens.granted(&sha256("t"));
            assert_eq!(tokens.granted(&sha256("u")).role(), None);
            Role::ALL.map(|role| granted.scope(role).map_or_else(String::new, |scope| scope.to_string()))
        };
        assert_eq!(scopes(&[line(Role::Admin, &["b", "a"])]), ["a,b", "a,b", "a,b"]);
        let two = [line(Role::Read, &["a"]), line(Role::Append, &["b"])];
        assert_eq!(scopes(&two), ["a,b", "b", ""]);
        assert_eq!(scopes(&[line(Role::Read, &[]), line(Role::Append, &["b"])]), ["all logs", "b", ""]);
        assert_eq!(
            scopes(&[line(Role::Read, &["a"]), line(Role::Append, &[])]),
            ["all logs", "all logs", ""]
        );
    }
}
