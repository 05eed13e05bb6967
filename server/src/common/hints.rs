//! Hints: words that a user of other programs tries, and the command that does it here.

use clap::error::{ContextKind, ErrorKind};

/// A word that there is not, the command behind which it was given (empty: `chiplog` itself), and the hint.
type Hint = (&'static str, &'static [&'static str], &'static str);

const SUBCOMMANDS: &[Hint] = &[
    (
        "member",
        &["list", "ls", "show", "status"],
        "`chiplog status HOST:PORT` lists the members; `chiplog member --help` has the changes",
    ),
    ("logs", &["rm", "remove", "drop"], "`chiplog logs delete HOST:PORT NAME` deletes a log"),
    ("logs", &["ls", "show"], "`chiplog logs list HOST:PORT` lists the logs"),
    ("", &["tail"], "`chiplog read LOG --follow` prints records as they come"),
    ("", &["cat"], "`chiplog read LOG` prints the records"),
    ("", &["ls", "list", "topics"], "`chiplog logs list HOST:PORT` lists the named logs of a server"),
    ("", &["produce", "write"], "`chiplog append LOG` appends the lines of its input"),
    ("", &["consume"], "`chiplog read LOG --follow` prints records as they come"),
    ("", &["truncate", "trim"], "`chiplog discard LOG INDEX` removes the records before an index"),
];

const ARGUMENTS: &[Hint] = &[
    ("backup", &["--check"], "`chiplog restore BACKUP --check` checks a backup"),
    ("seal", &["--yes"], "`chiplog logs seal` does not ask: the records stay"),
    ("discard", &["--yes"], "`chiplog discard` does not ask"),
];

/// The hint for a mistake in this command line, if there is one.
pub(crate) fn hint(error: &clap::Error, arguments: &[String]) -> Option<&'static str> {
    let (context, hints) = match error.kind() {
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, SUBCOMMANDS),
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, ARGUMENTS),
        _ => return None,
    };
    let word = error.get(context)?.to_string();
    let is_behind = |command: &str| command.is_empty() || arguments.iter().any(|given| given == command);
    hints
        .iter()
        .find(|(command, words, _)| words.contains(&&*word) && is_behind(command))
        .map(|(_, _, hint)| *hint)
}
