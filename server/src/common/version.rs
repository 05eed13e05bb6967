//! The version that the program shows.

use std::sync::LazyLock;

/// The version, followed by the commit if the build was given one: `0.1.0 (598af70c1234)`. `make install-server`, `make deb`
/// and `make static` give it as CHIPLOG_COMMIT. Builds for tests have none, so that a commit alone compiles nothing again.
pub(crate) fn version() -> &'static str {
    static VERSION: LazyLock<String> =
        LazyLock::new(|| with_commit(env!("CARGO_PKG_VERSION"), option_env!("CHIPLOG_COMMIT")));
    &VERSION
}

fn with_commit(version: &str, commit: Option<&str>) -> String {
    match commit.map(str::trim) {
        None | Some("") => version.to_owned(),
        Some(commit) => format!("{version} ({commit})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_follows_the_version_if_it_is_known() {
        assert_eq!(with_commit("0.1.0", None), "0.1.0");
        assert_eq!(with_commit("0.1.0", Some(" ")), "0.1.0");
        assert_eq!(with_commit("0.1.0", Some("598af70c1234-dirty")), "0.1.0 (598af70c1234-dirty)");
        assert!(version().starts_with(env!("CARGO_PKG_VERSION")));
    }
}
