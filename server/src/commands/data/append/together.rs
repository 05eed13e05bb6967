//! `chiplog logs append-together`: a batch of records for each of several named logs of one group, all of them or none.
//!
//! ```text
//! NAME=FILE … --> a batch each --(one call, one block)--> indexes
//! ```
//!
//! Invariant: a failure says that nothing was appended only if that is certain. If it is unknown, the status is 6.

use super::input::{Framing, Input};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use crate::connect::cluster::Connect;
use crate::connect::open_log::CodecName;
use crate::connect::remote::{Remote, failure};
use crate::connect::target::{Servers, check_log_name};
use chiplog::{Appended, Batch, BatchBuilder, Durability, ErrorKind};
use chiplog_net::client::Client;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  chiplog logs create log1:7411 account-1
  chiplog logs create log1:7411 account-2 --beside account-1
  echo -5 > withdraw; echo +5 > deposit
  chiplog logs append-together log1:7411 account-1=withdraw account-2=deposit
      Both records, or none of them.
  producer | chiplog logs append-together log1:7411 orders=- --length-prefixed audit=note

JSON fields, one object a line, in the order of the arguments:
  name, records, bytes, first, last (the indexes), durability (majority, majority+slices or object)
An error has the field `appended`: false if nothing was appended, null if that is unknown, true if all records
were, and the result could not be printed.";

/// Servers take no more batches in a call.
const FILES_MAX: usize = 256;
/// The records of all logs together. Servers take 4 MiB unless they are configured otherwise (`log.block_bytes_max`).
const BYTES_MAX: usize = 32 << 20;

/// Append to several logs of one group, all or nothing.
///
/// Each line of FILE becomes a record of the log NAME. All records of all logs are in one block: no crash separates
/// them, and no copy of the group; readers of two of the logs can see those of one a moment before those of the other. So
/// they have to fit into one block, 4 MiB by default, and the logs have to be of one group:
/// `chiplog logs create NAME --beside OTHER`. Up to 256 files; several can be for one log.
///
/// There are no sessions over several logs. If the answer of the servers is lost, the command does not try again: status
/// 6, and all records are in the logs, or none. Wait some seconds then, and read the ends of the logs. After any other
/// failure the message says that nothing was appended, and the command can be run again, or that all was, and the result
/// could not be printed.
#[derive(Args, Debug)]
#[command(allow_missing_positional = true, after_long_help = EXAMPLES)]
pub(crate) struct Together {
    /// Servers of the cluster, by their address for clients. One that runs is enough; A,B,C are tried in turn.
    #[arg(value_name = "HOST:PORT", env = "CHIPLOG_SERVERS")]
    servers: Option<String>,

    /// A log, and the file with its records. One of the files can be standard input ("-").
    #[arg(value_name = "NAME=FILE", required = true)]
    appends: Vec<String>,

    /// The files have length-prefixed records (32 bits, little-endian) instead of lines.
    #[arg(long)]
    length_prefixed: bool,

    /// Compress the records of each file.
    #[arg(long, value_enum, default_value_t = CodecName::None)]
    codec: CodecName,

    #[command(flatten)]
    connect: Connect,
}

/// A log, and the file with its records.
type Append = (String, PathBuf);
/// The records of a file, and their bytes.
type Records = (Batch, u64);

/// The part of the result that is about one file.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    records: u32,
    bytes: u64,
    first: u64,
    last: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<&'static str>,
}

impl Together {
    /// Tells servers from files: a file has its log before it. `env`: the servers of the environment.
    ///
    /// # Errors
    /// `InvalidArgument`: there are no servers, or one of the others is not NAME=FILE.
    pub(crate) fn parts(&self, env: Option<&str>) -> Result<(String, Vec<Append>)> {
        let mut given = self.appends.clone();
        let servers = match (self.servers.as_deref(), env) {
            (Some(first), env) if first.contains('=') => {
                given.insert(0, first.to_owned());
                env
            }
            (servers, _) => servers,
        };
        let Some(servers) = servers else {
            return Err(Failure::usage("give HOST:PORT of a server before the logs and their files"));
        };
        let appends: Vec<Append> = given.iter().map(|text| append(text)).collect::<Result<_>>()?;
        if appends.len() > FILES_MAX {
            let what = format!("{} files are given; a call takes up to {FILES_MAX}", appends.len());
            return Err(Failure::usage(what));
        }
        if appends.iter().filter(|(_, path)| path == Path::new("-")).count() > 1 {
            return Err(Failure::usage("only one log can have its records from standard input"));
        }
        Ok((servers.to_owned(), appends))
    }

    /// Appends the records of all files.
    ///
    /// # Errors
    /// Each says whether it is certain that nothing was appended.
    pub(crate) fn run(&self, servers: &Servers, appends: &[Append], ui: &Ui) -> Result<Exit> {
        let (batches, appended) = self.append(servers, appends, ui)?;
        for (((name, _), (batch, bytes)), at) in appends.iter().zip(&batches).zip(&appended) {
            let shown = Shown {
                name,
                records: batch.count(),
                bytes: *bytes,
                first: at.first.get(),
                last: at.last().get(),
                durability: at.durability.map(Durability::name),
            };
            ui.result(&shown, |shown| {
                let records = format::many(shown.records.into(), "record", "records");
                format!("appended {records} to {name}, index {} to {}", shown.first, shown.last)
            })
            .map_err(|failure| failure.with_detail("all records were appended", "appended", true.into()))?;
        }
        Ok(Exit::Ok)
    }

    fn append(
        &self,
        servers: &Servers,
        appends: &[Append],
        ui: &Ui,
    ) -> Result<(Vec<Records>, Vec<Appended>)> {
        let prepared = self.batches(appends).and_then(|batches| {
            let first = appends.first().map_or("", |(name, _)| name);
            let remote = Remote::connect(&servers.with_log(first), &self.connect, ui)?;
            let logs = appends.iter().map(|(name, _)| remote.wait(remote.client.of_log(name.as_str())));
            let logs = logs.collect::<chiplog::Result<Vec<_>>>().map_err(failure)?;
            Ok((batches, remote, logs))
        });
        let (batches, remote, logs) = prepared.map_err(nothing)?;
        let pairs: Vec<_> = logs.iter().zip(&batches).map(|(log, (batch, _))| (log, batch)).collect();
        match remote.wait_for_leader(Client::append_together(&pairs)) {
            Ok(appended) => Ok((batches, appended)),
            Err(error) => Err(failed(error)),
        }
    }

    /// Reads all files.
    fn batches(&self, appends: &[Append]) -> Result<Vec<Records>> {
        let framing = if self.length_prefixed { Framing::LengthPrefixed } else { Framing::Lines };
        let record_bytes_max = chiplog::Options::default().record_bytes_max;
        let (mut batches, mut record, mut room) = (Vec::new(), Vec::new(), BYTES_MAX);
        for (name, path) in appends {
            let mut input = Input::open(Some(path), framing, record_bytes_max)?;
            let (mut builder, mut bytes) = (BatchBuilder::new(), 0);
            builder.codec(self.codec.into());
            while input.next(&mut record)? {
                builder.push(&record)?;
                bytes += record.len() as u64;
                if builder.encoded_bytes() > room {
                    let max = format::bytes(BYTES_MAX as u64);
                    let what =
                        format!("the files have more than {max} of records: they do not fit into one block");
                    return Err(Failure::new(ErrorKind::TooLarge, what));
                }
            }
            if builder.is_empty() {
                let what = format!("{} has no records: leave out {name}={}", path.display(), path.display());
                return Err(Failure::usage(what));
            }
            room -= builder.encoded_bytes();
            batches.push((builder.build()?, bytes));
        }
        Ok(batches)
    }
}

/// Parses NAME=FILE.
///
/// # Errors
/// `InvalidArgument`.
fn append(text: &str) -> Result<Append> {
    match text.split_once('=') {
        Some((name, path)) if !path.is_empty() => {
            check_log_name(name).map_err(Failure::usage)?;
            Ok((name.to_owned(), path.into()))
        }
        _ => Err(Failure::usage(format!("{text:?} is not NAME=FILE: a log, and the file with its records"))),
    }
}

/// The failure of the call.
fn failed(error: chiplog::Error) -> Failure {
    if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) {
        return nothing(failure(error));
    }
    let mut unknown = failure(error).with_exit(Exit::Unknown);
    unknown.detail("appended", Value::Null);
    unknown
}

/// The same failure, after which it is certain that nothing was appended.
fn nothing(failure: Failure) -> Failure {
    const WORDS: &str = "nothing was appended";
    let mut failure = match failure.to_string().contains(WORDS) {
        true => failure,
        false => failure.with_words(WORDS),
    };
    failure.detail("appended", Value::Bool(false));
    failure
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        together: Together,
    }

    fn parts(args: &[&str], env: Option<&str>) -> Result<(String, Vec<Append>), String> {
        let line = Line::try_parse_from([&["x"], args].concat()).map_err(|e| e.to_string())?;
        line.together.parts(env).map_err(|e| e.to_string())
    }

    #[test]
    fn servers_are_told_from_files() {
        let appends = vec![("a".to_owned(), PathBuf::from("f")), ("b/3".to_owned(), PathBuf::from("g=h"))];
        for (args, env) in [(&["s:1", "a=f", "b/3=g=h"][..], None), (&["a=f", "b/3=g=h"], Some("s:1"))] {
            assert_eq!(parts(args, env), Ok(("s:1".to_owned(), appends.clone())), "{args:?}");
        }
        for (args, words) in [
            (&["a=f", "b=g"][..], "give HOST:PORT"),
            (&["s:1", "a"], "is not NAME=FILE"),
            (&["s:1", "a="], "is not NAME=FILE"),
            (&["s:1", "a b=f"], "is not the name of a log"),
            (&["s:1", "a=-", "b=-"], "only one log"),
        ] {
            let error = parts(args, None).unwrap_err();
            assert!(error.contains(words), "{args:?}: {error}");
        }
        let many: Vec<String> = (0..=FILES_MAX).map(|n| format!("a=f{n}")).collect();
        let args: Vec<&str> = ["s:1"].into_iter().chain(many.iter().map(String::as_str)).collect();
        assert!(parts(&args, None).unwrap_err().contains("up to 256"));
    }

    #[test]
    fn failures_say_what_is_certain() {
        for (kind, exit) in [(ErrorKind::NotLeader, Exit::Retry), (ErrorKind::InvalidArgument, Exit::Usage)] {
            let failure = nothing(failed(chiplog::Error::new(kind, "no leader")));
            assert_eq!(failure.to_string(), "no leader; nothing was appended", "once");
            assert_eq!((failure.exit(), &failure.json()["appended"]), (exit, &Value::Bool(false)));
        }
        for kind in [ErrorKind::Unavailable, ErrorKind::Timeout] {
            let failure = failed(chiplog::Error::new(kind, "no answer"));
            assert_eq!(failure.exit(), Exit::Unknown);
            assert!(failure.json().get("appended").is_some_and(Value::is_null), "{}", failure.json());
            assert!(!failure.to_string().contains("nothing"));
        }
    }
}
