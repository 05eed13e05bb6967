//! The log on standard error: the options of all commands that set its level, and its two forms, text and
//! JSON.

use crate::common::failure::{Failure, Result};
use clap::{ArgAction, Args};
use std::io::IsTerminal;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The options of every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Global {
    /// Write results and errors as JSON.
    ///
    /// Results go to standard output: one object, or one per line for records, dumped blocks and named logs. Errors and
    /// log events go to standard error, one object per line. Field names are stable.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Print less: no progress, no summary, and of the library's log only errors.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Log more of what the library notices: -v info, -vv debug, -vvv trace.
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,

    /// The lowest level that is logged to standard error, unless -v or -q sets it: off, error, warn, info,
    /// debug, trace [default: info for serve and follow, which run for long; else warn]
    #[arg(long, global = true, env = "CHIPLOG_LOG", value_name = "LEVEL")]
    pub(crate) log: Option<LevelFilter>,
}

/// The tracing target of the program's own messages about its work. It is shown at every level.
pub(crate) const SAID: &str = "chiplog::said";

/// The tracing target of a client that waits for servers. Commands report that in their own words, with advice.
const CLIENT_WAITS: &str = "chiplog_net::client::cluster::wait_notice";

/// The tracing target of a follower that ends. `chiplog follow` reports that itself.
const FOLLOWER_ENDS: &str = "chiplog_net::follower::ended";

/// Starts logging to standard error. A service logs more by default than a command that ends soon.
pub(crate) fn start_log(global: &Global, is_service: bool) -> Result<()> {
    let default = if is_service { LevelFilter::INFO } else { LevelFilter::WARN };
    let level = match (global.quiet, global.verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, 0) => global.log.unwrap_or(default),
        (_, 1) => LevelFilter::INFO,
        (_, 2) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let shown = Targets::new()
        .with_default(level)
        .with_target(SAID, LevelFilter::INFO)
        .with_target(CLIENT_WAITS, LevelFilter::OFF)
        .with_target(FOLLOWER_ENDS, LevelFilter::OFF);
    let started = if global.json { log_as_json(shown) } else { log_in_words(shown) };
    started.map_err(|e| Failure::usage(format!("cannot start logging: {e}")))
}

/// Whether what is written to standard error has colours.
pub(crate) fn colours() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Logs an event per line: time, level, message, and the event's fields.
fn log_in_words(shown: Targets) -> Result<(), String> {
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(colours())
        .with_target(false)
        .with_writer(std::io::stderr)
        .with_filter(shown);
    tracing_subscriber::registry().with(lines).try_init().map_err(|e| e.to_string())
}

/// Logs an object per line: `timestamp`, `level`, `message`, and the event's fields.
fn log_as_json(shown: Targets) -> Result<(), String> {
    let lines = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_target(false)
        .with_writer(std::io::stderr)
        .with_filter(shown);
    tracing_subscriber::registry().with(lines).try_init().map_err(|e| e.to_string())
}
