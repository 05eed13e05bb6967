//! The command line as a whole: the options that all commands share, and the help assembled from the
//! commands' own parts.

use crate::commands::Command;
use crate::common::exit;
use crate::common::logging::Global;
use crate::common::version::version;
use clap::{CommandFactory, Parser};

/// An embeddable replicated log: append records, read them back by index, look after the files.
///
/// A log is a directory, or behind servers: HOST:PORT is their default log, HOST:PORT/NAME one of their named
/// logs. Records are opaque bytes, numbered 1, 2, 3 … without holes. An append is confirmed when it is durable:
/// fdatasync has returned, with servers on a majority of them. One process at a time appends to a directory;
/// any number of processes read it meanwhile.
#[derive(Debug, Parser)]
#[command(name = "chiplog", version = version(), propagate_version = true, max_term_width = 110, after_long_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  chiplog append ./log < app.log           each line becomes a record
  chiplog read ./log --last 10 --follow    the newest ten, then each new record
  chiplog read log1:7411/orders            the records of a named log of servers
  chiplog info ./log --json                positions and sizes for a script
  chiplog verify ./log                     check every checksum of every block
  chiplog doctor ./log                     is this disk fit for a log?";

const ENVIRONMENT: &str = "\
Environment:
  CHIPLOG_LOG  the level of what is logged to standard error, as --log
  NO_COLOR     if set, no colours";

/// The command line with all its help.
pub(crate) fn command() -> clap::Command {
    fn with_tables(command: clap::Command) -> clap::Command {
        let own = command.get_after_long_help().map(|help| format!("{help}\n\n")).unwrap_or_default();
        command.after_long_help(format!("{own}{ENVIRONMENT}\n\n{}", exit::TABLE))
    }
    with_tables(Cli::command()).mut_subcommands(|command| with_tables(command).mut_subcommands(with_tables))
}

#[cfg(test)]
mod tests {
    #[test]
    fn command_line_is_consistent() {
        super::command().debug_assert();
    }

    /// The commands below this one, as they are typed, with their options that take a value.
    fn options(command: &clap::Command, path: &[String]) -> Vec<(Vec<String>, String)> {
        let takes_value = |arg: &&clap::Arg| arg.get_action().takes_values();
        let long = command.get_arguments().filter(takes_value).filter_map(clap::Arg::get_long);
        let mut all: Vec<_> = long.map(|option| (path.to_vec(), format!("--{option}"))).collect();
        for below in command.get_subcommands() {
            all.extend(options(below, &[path, &[below.get_name().to_owned()]].concat()));
        }
        all
    }

    #[test]
    fn refused_number_is_answered_with_the_numbers_that_are_allowed() {
        let command = super::command();
        let mut refused = 0;
        for (path, option) in options(&command, &["chiplog".into()]) {
            for value in ["abc", "1e99", "99999999999999999999"] {
                let args = path.iter().map(String::as_str).chain([option.as_str(), value]);
                let Err(error) = command.clone().try_get_matches_from(args) else { continue };
                if error.kind() != clap::error::ErrorKind::ValueValidation {
                    continue;
                }
                let text = error.to_string();
                refused += usize::from(text.contains("': give "));
                for bare in ["invalid digit", "too large to fit", "invalid float", " is not in "] {
                    assert!(!text.contains(bare), "{path:?} {option} {value}: {text}");
                }
            }
        }
        assert!(refused > 50, "only {refused} numbers were refused");
    }

    /// Where the output is no terminal, 100 columns are assumed: words of longer lines had lines of their own.
    #[test]
    fn tables_of_tier_are_not_wrapped() {
        let command = super::command();
        let tier = command.find_subcommand("tier").unwrap();
        for command in [&command, tier].into_iter().chain(tier.get_subcommands()) {
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines() {
                assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
            }
        }
    }

    #[test]
    fn every_command_has_examples_and_exit_statuses() {
        for mut command in super::command().get_subcommands().cloned() {
            let help = command.render_long_help().to_string();
            let name = command.get_name();
            assert!(help.contains("Examples:"), "{name} has no examples");
            assert!(help.contains("Exit status:"), "{name} has no exit status");
            let its = command.get_subcommands().filter(|of_it| of_it.get_name() != "help").cloned();
            for mut of_it in its.collect::<Vec<_>>() {
                let help = of_it.render_long_help().to_string();
                assert!(help.contains("Exit status:"), "{name} {} has no exit status", of_it.get_name());
                assert!(name != "logs" || help.contains("Examples:"), "{} has no examples", of_it.get_name());
            }
        }
    }
}
