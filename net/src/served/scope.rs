//! Scope: the logs that a token reaches: all, or the named logs whose names begin with one of its prefixes.
//!
//! Invariants:
//! - Prefixes are sorted, and none begins with another one: the names that begin with one of them come before those of the
//!   next.
//! - No prefix is empty or begins with `_`: only the scope of all logs has the default log, the system log and groups.

use crate::served::log_names::DEFAULT_LOG;
use chiplog::{Error, ErrorKind, Result};
use std::fmt;
use std::sync::Arc;

/// The bytes of the longest name without a partition's number.
const NAME_BYTES_MAX: usize = 249;

/// The logs that a token reaches. Cheap to clone. By default all of them.
///
/// ```
/// use chiplog_net::listener::auth::roles::Scope;
/// let scope = Scope::of(["orders", "tenant-7/"])?;
/// assert!(scope.has("orders") && scope.has("orders-2") && scope.has("tenant-7/0"));
/// assert!(!scope.has("tenant-7") && !scope.has("default") && !scope.has("_system"));
/// assert!(Scope::default().has("default"));
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// None: all logs.
    prefixes: Option<Arc<[String]>>,
}

impl Scope {
    /// The named logs whose names begin with one of these.
    ///
    /// # Errors
    /// `InvalidArgument`: no name of a log begins with one of them, or there are none. The message does not repeat it.
    pub fn of<S: Into<String>>(prefixes: impl IntoIterator<Item = S>) -> Result<Self> {
        let mut sorted: Vec<String> = prefixes.into_iter().map(Into::into).collect();
        if sorted.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a scope has at least one prefix"));
        }
        for (n, prefix) in sorted.iter().enumerate() {
            if let Err(fault) = Self::check_prefix(prefix) {
                let what = format!("prefix {} of the scope {fault}", n + 1);
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            }
        }
        sorted.sort_unstable();
        // A prefix follows directly behind the one that it begins with, or behind others that do.
        sorted.dedup_by(|longer, prefix| longer.starts_with(&**prefix));
        Ok(Self { prefixes: Some(sorted.into()) })
    }

    /// Checks that names of logs can begin with this.
    ///
    /// # Errors
    /// Why none does, without the prefix itself.
    pub fn check_prefix(prefix: &str) -> std::result::Result<(), &'static str> {
        let is_plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        let (base, partition) = prefix.split_once('/').unwrap_or((prefix, ""));
        let is_number = || partition.parse::<u32>().is_ok_and(|number| number.to_string() == partition);
        if base.is_empty() {
            Err("is empty; without a scope a token reaches all logs")
        } else if base.starts_with('_') {
            Err("begins with _, as no name of a log does")
        } else if base.len() > NAME_BYTES_MAX {
            Err("is longer than any name of a log")
        } else if !base.bytes().all(is_plain) {
            Err(
                "has a character that no name of a log has: use A-Z a-z 0-9 . _ -, then perhaps / and a number",
            )
        } else if !partition.is_empty() && !is_number() {
            Err("has something else than a partition's number behind the /")
        } else {
            Ok(())
        }
    }

    /// The prefixes, sorted and without those that begin with another one. Empty: all logs are in it.
    pub fn prefixes(&self) -> &[String] {
        self.prefixes.as_deref().unwrap_or_default()
    }

    /// Whether all logs are in it, also those without a name.
    pub fn is_everything(&self) -> bool {
        self.prefixes.is_none()
    }

    /// Whether a log is in it. Empty: the default log.
    pub fn has(&self, log: &str) -> bool {
        let begins = |prefixes: &Arc<[String]>| prefixes.iter().any(|prefix| log.starts_with(&**prefix));
        self.prefixes.as_ref().is_none_or(|prefixes| log != DEFAULT_LOG && begins(prefixes))
    }

    /// The logs that are in this scope or in the other one.
    pub(crate) fn or(self, other: &Self) -> Self {
        let (Some(own), Some(others)) = (&self.prefixes, &other.prefixes) else { return Self::default() };
        Self::of(own.iter().chain(others.iter()).cloned()).unwrap_or(self)
    }

    /// Prefixes, in order and disjoint: the names that begin with one of them are those of this scope that begin with
    /// `prefix`.
    pub(crate) fn below(&self, prefix: &str) -> Vec<String> {
        let Some(prefixes) = &self.prefixes else { return vec![prefix.to_owned()] };
        let longer = |own: &String| match own.starts_with(prefix) {
            true => Some(own.clone()),
            false => prefix.starts_with(&**own).then(|| prefix.to_owned()),
        };
        prefixes.iter().filter_map(longer).collect()
    }
}

/// As in the file of tokens: the prefixes with commas between them.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.prefixes {
            None => f.write_str("all logs"),
            Some(prefixes) => f.write_str(&prefixes.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(prefixes: &[&str]) -> Scope {
        Scope::of(prefixes.iter().copied()).unwrap()
    }

    #[test]
    fn scope_has_the_names_that_begin_with_a_prefix() {
        let own = scope(&["tenant-7/", "orders", "d"]);
        for (log, is_in) in [
            ("orders", true), // a prefix can be a whole name
            ("orders/3", true),
            ("orders-eu", true),
            ("order", false),
            ("Orders", false),
            ("tenant-7/0", true),
            ("tenant-7", false),
            ("tenant-70/0", false),
            ("", false),
            ("default", false),
            ("default-2", true),
            ("_system", false),
            ("_group-1", false),
        ] {
            assert_eq!(own.has(log), is_in, "{log:?}");
            assert!(Scope::default().has(log), "{log:?}");
        }
    }

    #[test]
    fn prefixes_that_no_name_begins_with_are_refused_without_repeating_them() {
        let long = "x".repeat(250);
        for (bad, word) in [
            ("", "is empty"),
            ("/1", "is empty"),
            ("_system", "begins with _"),
            ("secret*", "character"),
            ("secret é", "character"),
            ("secret/x", "number"),
            ("secret/01", "number"),
            ("secret/1/2", "number"),
            ("secret/4294967296", "number"),
            (&long, "longer"),
        ] {
            let error = Scope::of(["a", bad]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let text = error.to_string();
            assert!(text.contains("prefix 2") && text.contains(word) && !text.contains("secret"), "{text}");
        }
        assert!(Scope::of([""; 0]).is_err());
        assert!(Scope::of(["a/4294967295", ".", "a_", "default"]).is_ok());
    }

    #[test]
    fn prefixes_are_sorted_and_disjoint() {
        assert_eq!(scope(&["b", "a-1", "a", "a/2", "b", "a.x"]).to_string(), "a,b");
        assert_eq!(scope(&["a/2", "a/20", "a-1"]).to_string(), "a-1,a/2");
        assert_eq!(Scope::default().to_string(), "all logs");
        let both = scope(&["a-1", "b"]).or(&scope(&["a"]));
        assert_eq!(both.to_string(), "a,b");
        assert!(both.or(&Scope::default()).is_everything());
        assert!(Scope::default().or(&scope(&["a"])).is_everything());
    }

    #[test]
    fn names_below_a_prefix_are_those_of_the_scope() {
        let own = scope(&["orders", "tenant-7/", "tenant-9"]);
        assert_eq!(own.below(""), ["orders", "tenant-7/", "tenant-9"]);
        assert_eq!(own.below("tenant-"), ["tenant-7/", "tenant-9"]);
        assert_eq!(own.below("tenant-7/3"), ["tenant-7/3"]);
        assert_eq!(own.below("orders"), ["orders"]);
        assert_eq!(own.below("users"), [""; 0]);
        assert_eq!(Scope::default().below("users"), ["users"]);
    }
}
