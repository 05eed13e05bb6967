//! The target of a command: a directory, or servers as `host:port`, several separated by commas.
//!
//! A name with a colon is a server: `a:9000`. A directory of that name is written `./a:9000`. A name without
//! colon and slash can mean either, so no command makes such a directory without being told to
//! ([`Target::check_new`]).

use crate::common::failure::{Failure, Result};
use chiplog::ErrorKind;
use chiplog_net::wire::address::check_host_port;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The place of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A directory on this machine.
    Directory(PathBuf),
    /// Servers of one cluster, each `host:port`; at least one.
    Servers(Vec<String>),
}

impl Target {
    /// Returns the directory.
    ///
    /// # Errors
    /// `InvalidArgument` for servers.
    pub(crate) fn directory(&self) -> Result<&Path> {
        match self {
            Self::Directory(path) => Ok(path),
            Self::Servers(_) => {
                let why = format!(
                    "{self} names a server, but this command reads files: give a local directory (one of that name is ./{self})"
                );
                Err(Failure::usage(why))
            }
        }
    }

    /// Before a log is made: checks that a directory is meant.
    ///
    /// # Errors
    /// `NotFound` for a name without a slash that is not an existing directory.
    pub(crate) fn check_new(&self) -> Result<()> {
        match self {
            Self::Directory(path) if is_bare(path) && !path.is_dir() => {
                let why = format!(
                    "there is no directory {self}: write a server as {self}:7411, a new log as ./{self} or with --create"
                );
                Err(Failure::new(ErrorKind::NotFound, why))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a path is a plain name, which a host could have.
fn is_bare(path: &Path) -> bool {
    let text = path.as_os_str().as_encoded_bytes();
    !text.contains(&b'/') && !matches!(text, b"." | b"..")
}

/// Parses a directory that a command makes. A URL and `host:port` are refused.
///
/// # Errors
/// The message says what to write instead.
pub(crate) fn directory(text: &str) -> Result<PathBuf, String> {
    match text.parse()? {
        Target::Directory(path) => Ok(path),
        Target::Servers(_) => {
            Err(format!("{text} names a server: give a directory (one of that name is ./{text})"))
        }
    }
}

/// Checks that a server or a directory is not given as a URL.
///
/// # Errors
/// The message says what to write instead.
pub(crate) fn check_no_url(text: &str) -> Result<(), String> {
    let Some((_, rest)) = text.split_once("://") else { return Ok(()) };
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    Err(format!("a URL is not accepted: give HOST:PORT of a server, such as {host}, or a directory's path"))
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("give a directory, or host:port".into());
        }
        check_no_url(text)?;
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        if text.starts_with(['/', '.']) || !text.contains(':') {
            return Ok(Self::Directory(text.into()));
        }
        for part in &parts {
            check_host_port(part).map_err(|e| format!("{e} (a directory of that name is ./{text})"))?;
        }
        Ok(Self::Servers(parts.into_iter().map(str::to_owned).collect()))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Servers(servers) => f.write_str(&servers.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_and_servers_are_distinguished() {
        let directory = |path: &str| Target::Directory(path.into());
        let servers = |all: &[&str]| Target::Servers(all.iter().map(|s| (*s).to_owned()).collect());
        for (text, target) in [
            ("/var/lib/log", directory("/var/lib/log")),
            ("log", directory("log")),
            ("./a:9000", directory("./a:9000")),
            ("logs/a", directory("logs/a")),
            ("a,b", directory("a,b")),
            ("/x/a:1,b:2", directory("/x/a:1,b:2")),
            ("localhost:9000", servers(&["localhost:9000"])),
            ("[::1]:80", servers(&["[::1]:80"])),
            ("a:1,b:2, c:3", servers(&["a:1", "b:2", "c:3"])),
        ] {
            assert_eq!(text.parse(), Ok(target));
        }
        for bad in [
            "host:0",
            "host:70000",
            "",
            "a:1,b",
            "a:1,",
            "a:b",
            "a:1/",
            "a:1x",
            "http://host:7411",
            "file:///var/lib/log",
        ] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    #[test]
    fn command_for_files_refuses_a_server() {
        let failure = "host:9000".parse::<Target>().unwrap().directory().unwrap_err();
        assert!(failure.to_string().contains("./host:9000"));
        assert_eq!(failure.exit(), crate::common::exit::Exit::Usage);
        assert!(directory("host:9000").unwrap_err().contains("./host:9000"));
        assert_eq!(directory("log"), Ok("log".into()));
    }

    #[test]
    fn plain_name_makes_no_directory() {
        let check = |text: &str| text.parse::<Target>().unwrap().check_new();
        for new in ["./log", "log/", "/var/lib/none", "a:1", "."] {
            assert!(check(new).is_ok(), "{new}");
        }
        let failure = check("no-such-log1").unwrap_err().to_string();
        assert!(failure.contains("no-such-log1:7411") && failure.contains("./no-such-log1"), "{failure}");
        assert!(check("src").is_ok(), "it exists");
    }
}
