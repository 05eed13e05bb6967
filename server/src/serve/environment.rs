//! Environment: the variables that configure a server.
//!
//! | variable | meaning |
//! |---|---|
//! | `CHIPLOG__LOG__SEGMENT_BYTES` | the key `log.segment_bytes`; every key has a variable: in capitals, `__` for the dot |
//! | `CHIPLOG_ZONE` and other names | the variable of a flag, handled by clap; overrides the above |
//! | other names that begin with `CHIPLOG_` | most likely a mistake |
//!
//! Must not know: which keys exist.

use crate::common::failure::{Failure, Result};
use crate::serve::config::Over;
use std::ffi::OsString;

/// The prefix of a key's variable.
const PREFIX: &str = "CHIPLOG__";

/// The keys that these variables set.
///
/// # Errors
/// A value is not UTF-8.
pub(crate) fn keys(set: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<Over>> {
    let mut keys = Vec::new();
    for (name, value) in set {
        let Some(key) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let by = format!("{PREFIX}{key} in the environment");
        let key = key.replace("__", ".").to_ascii_lowercase();
        let value = value.into_string().map_err(|_| Failure::usage(format!("{by} is not UTF-8")))?;
        keys.push(Over { key, value: value.trim().to_owned(), by });
    }
    keys.sort_by(|a, b| a.by.cmp(&b.by)); // so that of several wrong ones always the same is reported
    Ok(keys)
}

/// Variables that look like ours but have no meaning. `command`: the complete command line.
pub(crate) fn unknown(set: impl Iterator<Item = String>, command: &clap::Command) -> Vec<String> {
    fn known(command: &clap::Command, name: &str) -> bool {
        command.get_arguments().filter_map(clap::Arg::get_env).any(|e| e == name)
            || command.get_subcommands().any(|c| known(c, name))
    }
    // Kubernetes sets these for a service called chiplog.
    let foreign = |name: &str| name.starts_with("CHIPLOG_PORT") || name.contains("_SERVICE_");
    let ours = |name: &str| {
        name.starts_with(PREFIX) || known(command, name) || name == crate::connect::cluster::TOKEN_VARIABLE
    };
    set.filter(|n| n.starts_with("CHIPLOG_") && !foreign(n) && !ours(n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_variables_are_found() {
        let set = [
            "CHIPLOG_NODE",
            "CHIPLOG_NODES",
            "CHIPLOG_LOG",
            "CHIPLOG_TOKEN",
            "CHIPLOG__LOG__SEGMENT_BYTES",
            "CHIPLOG_SERVICE_HOST",
            "CHIPLOG_PORT_7411_TCP",
            "HOME",
        ];
        let command = crate::commands::cli::command();
        assert_eq!(unknown(set.iter().map(ToString::to_string), &command), ["CHIPLOG_NODES"]);
    }

    #[test]
    fn variable_is_the_key_in_capitals() {
        use std::os::unix::ffi::OsStringExt as _;
        let set = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let set = [
            set("CHIPLOG__ZONE", " west "),
            set("CHIPLOG__LOG__SEGMENT_BYTES", "1MiB"),
            set("CHIPLOG_ZONE", "east"),
            set("HOME", "/root"),
        ];
        let keys = keys(set.into_iter()).unwrap();
        let keys: Vec<_> = keys.iter().map(|over| (over.key.as_str(), over.value.as_str())).collect();
        assert_eq!(keys, [("log.segment_bytes", "1MiB"), ("zone", "west")]);
        let broken = (OsString::from("CHIPLOG__DATA"), OsString::from_vec(vec![0xff]));
        let error = super::keys(std::iter::once(broken)).unwrap_err().to_string();
        assert!(error.contains("CHIPLOG__DATA in the environment"), "{error}");
    }
}
