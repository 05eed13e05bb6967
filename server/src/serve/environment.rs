//! Environment: what variables say to a server.
//!
//! | variable | what |
//! |---|---|
//! | `CHIPLOG__LOG__SEGMENT_BYTES` | the key `log.segment_bytes`; every key has one: in capitals, `__` for its dot |
//! | `CHIPLOG_ZONE` and other names | a flag's own: clap's matter, and stronger |
//! | anything else that begins with `CHIPLOG_` | most likely a slip |
//!
//! Must not know: what keys there are.

use crate::common::failure::{Failure, Result};
use crate::serve::config::Over;
use std::ffi::OsString;

/// What stands before a key.
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
    keys.sort_by(|a, b| a.by.cmp(&b.by)); // of several that are wrong always the same is told
    Ok(keys)
}

/// Variables that look like ours and mean nothing. `command`: the whole command line.
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
    fn slips_in_the_environment_are_found() {
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
    fn a_variable_is_the_key_in_capitals() {
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
