//! The target of a command: a directory, or a log at servers.
//!
//! Servers are `host:port`, several separated by commas. After the first slash comes the name of one of their
//! named logs: `a:9000,b:9000/orders`. Without it their default log is meant.
//!
//! A name with a colon is a server: `a:9000`. A directory of that name is written `./a:9000`. A name without
//! colon and slash can mean either, so no command makes such a directory without being told to
//! ([`Target::check_new`]).

use crate::common::failure::{Failure, Result};
use crate::connect::directory::check_no_others;
use chiplog::ErrorKind;
use chiplog_net::served::log_slot::DEFAULT_LOG;
use chiplog_net::wire::address::check_host_port;
use std::fmt;
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// The place of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A directory on this machine.
    Directory(PathBuf),
    /// A log at servers.
    Servers(Servers),
}

/// Servers of one cluster, and which of their logs is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Servers {
    /// Each `host:port`; at least one.
    pub(crate) addresses: Vec<String>,
    /// The log's name. Empty: the default log.
    pub(crate) log: String,
}

impl Servers {
    /// The default log of these servers.
    pub(crate) fn new(addresses: Vec<String>) -> Self {
        Self { addresses, log: String::new() }
    }

    /// Another log of the same servers.
    pub(crate) fn with_log(&self, log: &str) -> Self {
        Self { addresses: self.addresses.clone(), log: log.to_owned() }
    }

    /// Several arguments as one list.
    ///
    /// # Errors
    /// `InvalidArgument`: they name different logs, or none is given.
    pub(crate) fn joined(all: &[Self]) -> Result<Self> {
        let Some(first) = all.first() else { return Err(Failure::usage("give HOST:PORT of a server")) };
        if let Some(other) = all.iter().find(|other| other.log != first.log) {
            return Err(Failure::usage(format!(
                "{first} and {other} are different logs: give one log, after its servers"
            )));
        }
        let addresses = all.iter().flat_map(|servers| servers.addresses.clone()).collect();
        Ok(Self { addresses, log: first.log.clone() })
    }

    /// Whether a log other than the default one is meant.
    pub(crate) fn is_named(&self) -> bool {
        !matches!(&*self.log, "" | DEFAULT_LOG)
    }

    /// Returns the servers, for a command that works on no named log. `why` says so.
    ///
    /// # Errors
    /// `InvalidArgument`: a named log is meant.
    pub(crate) fn unnamed(&self, why: &str) -> Result<&[String]> {
        match self.is_named() {
            false => Ok(&self.addresses),
            true => {
                let servers = self.addresses.join(",");
                Err(Failure::usage(format!("{self} is a named log, but {why}: give {servers}")))
            }
        }
    }
}

/// Checks the name of a log, as far as the command line has to know it. The servers know the rest.
///
/// # Errors
/// The message says what is wrong.
pub(crate) fn check_log_name(name: &str) -> Result<(), String> {
    let (base, partition) = name.split_once('/').unwrap_or((name, "0"));
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    if !base.is_empty() && base.bytes().all(is_plain) && partition.parse::<u32>().is_ok() {
        return Ok(());
    }
    Err(format!(
        "{name:?} is not the name of a log, which is 1 to 249 of the characters A-Z a-z 0-9 . _ -, then perhaps / and a \
         partition's number"
    ))
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
    /// `NotFound` for a name without a slash that is not an existing directory. `AlreadyExists` for a directory with other files and
    /// no log.
    pub(crate) fn check_new(&self) -> Result<()> {
        match self {
            Self::Directory(path) if is_bare(path) && !path.is_dir() => {
                let why = format!(
                    "there is no directory {self}: write a server as {self}:7411, a new log as ./{self} or with --create"
                );
                Err(Failure::new(ErrorKind::NotFound, why))
            }
            Self::Directory(path) if begins_with_host(path) => {
                let why = format!(
                    "there is no directory {self}, which begins like a server without its port: write a log of a server as 127.0.0.1:7411/NAME, a new log in a directory as ./{self}"
                );
                Err(Failure::new(ErrorKind::NotFound, why))
            }
            Self::Directory(path) => {
                let instead = "give an empty or a new one, or make a log among them with --create";
                check_no_others(path, |_| false, instead)
            }
            Self::Servers(_) => Ok(()),
        }
    }
}

/// Whether a path begins with this machine's name or an IP address, and nothing here is called that.
fn begins_with_host(path: &Path) -> bool {
    let Some(Component::Normal(first)) = path.components().next() else { return false };
    let is_host = first.to_str().is_some_and(|t| t == "localhost" || t.parse::<IpAddr>().is_ok());
    is_host && !Path::new(first).exists()
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
        if text.starts_with(['/', '.']) || !text.contains(':') {
            return Ok(Self::Directory(text.into()));
        }
        let servers = text.parse().map_err(|e| format!("{e} (a directory of that name is ./{text})"))?;
        Ok(Self::Servers(servers))
    }
}

impl FromStr for Servers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        check_no_url(text)?;
        if text.starts_with(['/', '.']) {
            return Err(format!(
                "{text:?} is a path, and servers are wanted: give HOST:PORT, such as 127.0.0.1:7411; `chiplog info {text}` shows a log in \
                 a directory"
            ));
        }
        let (list, log) = match text.split_once('/') {
            Some((list, log)) => (list, Some(log)),
            None => (text, None),
        };
        let addresses: Vec<_> = list.split(',').map(|address| address.trim().to_owned()).collect();
        for address in &addresses {
            check_host_port(address).map_err(|e| match address == text {
                true if !text.contains(':') => {
                    format!("{e}; `chiplog info DIRECTORY` shows a log in a directory")
                }
                true => e.to_string(),
                false => format!("{text:?}: {e}"),
            })?;
        }
        let log = match log {
            Some("") => return Err(format!("{text:?} ends with a slash: after it comes the name of a log")),
            Some(log) if log.contains([',', ':']) => {
                return Err(format!(
                    "{text:?} has a slash before its last server: the log comes after all servers"
                ));
            }
            log => log.unwrap_or_default(),
        };
        if !log.is_empty() {
            check_log_name(log)?;
        }
        Ok(Self { addresses, log: log.to_owned() })
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.addresses.join(","))?;
        if self.log.is_empty() { Ok(()) } else { write!(f, "/{}", self.log) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Servers(servers) => servers.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_and_servers_are_distinguished() {
        let directory = |path: &str| Target::Directory(path.into());
        let list = |all: &[&str]| Servers::new(all.iter().map(|s| (*s).to_owned()).collect());
        let servers = |all: &[&str]| Target::Servers(list(all));
        let named = |all: &[&str], log: &str| Target::Servers(list(all).with_log(log));
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
            ("a:1/orders", named(&["a:1"], "orders")),
            ("[::1]:80,b:2/orders/3", named(&["[::1]:80", "b:2"], "orders/3")),
            ("a:1/_group-1", named(&["a:1"], "_group-1")),
            ("a:1/default", named(&["a:1"], "default")),
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
            "a:1/b/",
            "a:1/b/c",
            "a:1/b/3/4",
            "a:1/b c",
            "a:1/b,c:2/b",
            "logs/a:1",
            "a:1x",
            "http://host:7411",
            "file:///var/lib/log",
        ] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    #[test]
    fn servers_are_shown_as_they_are_written() {
        for text in ["a:1", "a:1,b:2", "a:1,b:2/orders", "a:1/orders/3"] {
            assert_eq!(text.parse::<Servers>().map(|servers| servers.to_string()).as_deref(), Ok(text));
            assert_eq!(text.parse::<Target>().map(|target| target.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn named_log_is_refused_where_none_is_possible() {
        let of = |text: &str| text.parse::<Servers>().unwrap();
        assert_eq!(of("a:1,b:2/default").unnamed("no").unwrap(), ["a:1", "b:2"]);
        let failure = of("a:1,b:2/orders").unnamed("this command copies the default log").unwrap_err();
        let text = failure.to_string();
        for words in ["a:1,b:2/orders", "this command copies the default log", "give a:1,b:2"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(failure.exit(), crate::common::exit::Exit::Usage);
    }

    #[test]
    fn arguments_are_joined_if_they_mean_one_log() {
        let all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Servers>>();
        let joined = Servers::joined(&all(&["a:1,b:2/orders", "c:3/orders"])).unwrap();
        assert_eq!(joined.to_string(), "a:1,b:2,c:3/orders");
        assert!(Servers::joined(&all(&["a:1", "b:2/orders"])).is_err());
        assert!(Servers::joined(&[]).is_err());
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
        for new in ["./log", "log/", "/var/lib/none", "a:1"] {
            assert!(check(new).is_ok(), "{new}");
        }
        let failure = check("no-such-log1").unwrap_err().to_string();
        assert!(failure.contains("no-such-log1:7411") && failure.contains("./no-such-log1"), "{failure}");
        let failure = check("src").unwrap_err();
        assert_eq!(failure.exit(), crate::common::exit::Exit::Usage, "it has other files");
    }
}
