//! What is logged to standard error: the options of all commands that say how much, and the two forms, words and JSON.

use crate::common::failure::{Failure, Result};
use clap::{ArgAction, Args};
use std::io::IsTerminal;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// What every command takes.
#[derive(Args, Debug)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Global {
    /// Write results and errors as JSON.
    ///
    /// Results go to standard output, one object, or one a line for what is many (records, dumped blocks);
    /// errors go to standard error, and what is logged there is JSON as well, an object a line. Field names are stable.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Say less: no progress, no summary, only errors of the library's log.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Say more of what the library notices: -v informs, -vv debugs, -vvv traces.
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,

    /// The level from which on events are logged to standard error, unless -v or -q says it: off, error, warn, info, debug, trace [default: info for
    /// serve and follow, which run for long; else warn]
    #[arg(long, global = true, env = "CHIPLOG_LOG", value_name = "LEVEL")]
    pub(crate) log: Option<LevelFilter>,
}

/// The program's own words about its work, where they are logged: a target of tracing that is shown at every level.
pub(crate) const SAID: &str = "chiplog::said";

/// Sends what the library notices to standard error. A service says more of its own accord than a command that ends soon.
pub(crate) fn start_log(global: &Global, is_service: bool) -> Result<()> {
    let default = if is_service { LevelFilter::INFO } else { LevelFilter::WARN };
    let level = match (global.quiet, global.verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, 0) => global.log.unwrap_or(default),
        (_, 1) => LevelFilter::INFO,
        (_, 2) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let shown = Targets::new().with_default(level).with_target(SAID, LevelFilter::INFO);
    let started = if global.json { log_as_json(shown) } else { log_in_words(shown) };
    started.map_err(|e| Failure::usage(format!("cannot start logging: {e}")))
}

/// A line an event: time, level, message, and what else is known of it.
fn log_in_words(shown: Targets) -> Result<(), String> {
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(colours)
        .with_target(false)
        .with_writer(std::io::stderr)
        .with_filter(shown);
    tracing_subscriber::registry().with(lines).try_init().map_err(|e| e.to_string())
}

/// An object a line: `timestamp`, `level`, `message`, and what else is known of the event.
fn log_as_json(shown: Targets) -> Result<(), String> {
    let lines = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_target(false)
        .with_writer(std::io::stderr)
        .with_filter(shown);
    tracing_subscriber::registry().with(lines).try_init().map_err(|e| e.to_string())
}
