//! What a command works on: a directory, or servers: `host:port`, or several with commas between.
//!
//! `a:9000` is a server; a directory of such a name is written `./a:9000`.

use crate::failure::{Failure, Result};
use chiplog::ErrorKind;
use chiplog_net::address::check_host_port;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where a log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A directory on this machine.
    Directory(PathBuf),
    /// Servers of one cluster, each `host:port`; at least one.
    Servers(Vec<String>),
}

impl Target {
    /// The directory.
    ///
    /// # Errors
    /// `Unsupported` for servers.
    pub(crate) fn directory(&self) -> Result<&Path> {
        match self {
            Self::Directory(path) => Ok(path),
            Self::Servers(_) => {
                let why = format!(
                    "{self} names a server, and this command reads files: give a directory of this machine (one of that name is ./{self})"
                );
                Err(Failure::new(ErrorKind::Unsupported, why))
            }
        }
    }
}

/// Whether it has the form of `host:port`, with a good port or not.
fn looks_like_server(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let plain = !host.is_empty() && !host.contains('/') && !port.is_empty();
        plain && port.bytes().all(|b| b.is_ascii_digit())
    })
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("give a directory, or host:port".into());
        }
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        if text.contains('/') || !parts.iter().any(|part| looks_like_server(part)) {
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
    fn directories_and_servers_are_told_apart() {
        let directory = |path: &str| Target::Directory(path.into());
        let servers = |all: &[&str]| Target::Servers(all.iter().map(|s| (*s).to_owned()).collect());
        for (text, target) in [
            ("/var/lib/log", directory("/var/lib/log")),
            ("log", directory("log")),
            ("./a:9000", directory("./a:9000")),
            ("a:b", directory("a:b")),
            ("a,b", directory("a,b")),
            ("/x/a:1,b:2", directory("/x/a:1,b:2")),
            ("localhost:9000", servers(&["localhost:9000"])),
            ("[::1]:80", servers(&["[::1]:80"])),
            ("a:1,b:2, c:3", servers(&["a:1", "b:2", "c:3"])),
        ] {
            assert_eq!(text.parse(), Ok(target));
        }
        for bad in ["host:0", "host:70000", "", "a:1,b", "a:1,"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    #[test]
    fn where_files_are_needed_a_server_is_refused_in_words() {
        let failure = "host:9000".parse::<Target>().unwrap().directory().unwrap_err();
        assert!(failure.to_string().contains("./host:9000"));
        assert_eq!(failure.exit(), crate::exit::Exit::Unsupported);
    }
}
