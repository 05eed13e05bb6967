//! The command line as a whole: what all commands share, and the help that the commands' own parts make up.

use crate::commands::Command;
use crate::exit;
use crate::failure::{Failure, Result};
use clap::{ArgAction, Args, CommandFactory, Parser};
use std::io::IsTerminal;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// An embeddable replicated log: append records, read them back by index, look after the files.
///
/// A log is a directory. Records are opaque bytes, numbered 1, 2, 3 … without holes. An append is confirmed
/// when it is durable (fdatasync has returned); one process at a time appends to a directory, any number read
/// it meanwhile.
#[derive(Debug, Parser)]
#[command(name = "chiplog", version, propagate_version = true, max_term_width = 100, after_long_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  chiplog append ./log < app.log           each line becomes a record
  chiplog read ./log --last 10 --follow    the newest ten, and then what comes
  chiplog info ./log --json                positions and sizes for a script
  chiplog verify ./log                     every checksum of every block
  chiplog doctor ./log                     is this disk fit for a log?";

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

const ENVIRONMENT: &str = "\
Environment:
  CHIPLOG_LOG  what is logged to standard error, as --log
  NO_COLOR     if set, no colours";

/// The command line with all its help.
pub(crate) fn command() -> clap::Command {
    fn with_tables(command: clap::Command) -> clap::Command {
        let own = command.get_after_long_help().map(|help| format!("{help}\n\n")).unwrap_or_default();
        command.after_long_help(format!("{own}{ENVIRONMENT}\n\n{}", exit::TABLE))
    }
    with_tables(Cli::command()).mut_subcommands(with_tables)
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

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }

    #[test]
    fn every_command_explains_itself() {
        for mut command in super::command().get_subcommands().cloned() {
            let help = command.render_long_help().to_string();
            let name = command.get_name();
            assert!(help.contains("Examples:"), "{name} has no examples");
            assert!(help.contains("Exit status:"), "{name} has no exit status");
        }
    }
}
