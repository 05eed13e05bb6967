//! What a command works on: a directory, or, when there is a server, `host:port`.
//!
//! `a:9000` is a server; a directory of such a name is written `./a:9000`.

use crate::failure::{Failure, Result};
use chiplog::ErrorKind;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where a log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A directory on this machine.
    Directory(PathBuf),
    /// A server.
    Server {
        /// Name or address.
        host: String,
        /// TCP port.
        port: u16,
    },
}

impl Target {
    /// The directory.
    ///
    /// # Errors
    /// `Unsupported` for a server.
    pub(crate) fn directory(&self) -> Result<&Path> {
        match self {
            Self::Directory(path) => Ok(path),
            Self::Server { .. } => {
                let why = format!(
                    "{self} names a server, which this version does not support yet: give a directory (one of that name is ./{self})"
                );
                Err(Failure::new(ErrorKind::Unsupported, why))
            }
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("give a directory".into());
        }
        let server = text.rsplit_once(':').filter(|(host, port)| {
            let plain = !host.is_empty() && !host.contains('/') && !port.is_empty();
            plain && port.bytes().all(|b| b.is_ascii_digit())
        });
        match server {
            None => Ok(Self::Directory(text.into())),
            Some((host, port)) => match port.parse() {
                Ok(port) if port > 0 => Ok(Self::Server { host: host.to_string(), port }),
                _ => Err(format!(
                    "{port} is no port: they go from 1 to 65535 (a directory of that name is ./{text})"
                )),
            },
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Server { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_and_servers_are_told_apart() {
        let server = |host: &str, port| Target::Server { host: host.into(), port };
        for (text, target) in [
            ("/var/lib/log", Target::Directory("/var/lib/log".into())),
            ("log", Target::Directory("log".into())),
            ("./a:9000", Target::Directory("./a:9000".into())),
            ("a:b", Target::Directory("a:b".into())),
            ("localhost:9000", server("localhost", 9000)),
            ("[::1]:80", server("[::1]", 80)),
        ] {
            assert_eq!(text.parse(), Ok(target));
        }
        assert!("host:0".parse::<Target>().is_err());
        assert!("host:70000".parse::<Target>().is_err());
        assert!("".parse::<Target>().is_err());
    }

    #[test]
    fn a_server_is_refused_in_words() {
        let failure = "host:9000".parse::<Target>().unwrap().directory().unwrap_err();
        assert!(failure.to_string().contains("./host:9000"));
        assert_eq!(failure.exit(), crate::exit::Exit::Unsupported);
    }
}
