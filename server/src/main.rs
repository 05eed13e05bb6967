//! `chiplog`: the command line. It parses the arguments, runs a command and turns the result into an exit
//! code.
//!
//! Standard output carries results only. Progress, errors and the library's log go to standard error.
//!
//! Must not know: what any command does.

mod commands;
mod common;
mod connect;
mod serve;

use clap::FromArgMatches;
use clap::error::ErrorKind;
use commands::cli::{self, Cli};
use common::exit::Exit;
use common::failure::Failure;
use common::hints;
use common::logging;
use common::output::Ui;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let json = std::env::args_os().any(|arg| arg == "--json");
    let parsed = cli::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            let arguments: Vec<String> =
                std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
            if let Some(hint) = hints::hint(&error, &arguments).filter(|_| !json) {
                let _ = writeln!(std::io::stderr(), "chiplog: {hint}");
            }
            return explain(&error, json);
        }
    };
    let is_service = cli.command.is_service();
    let ui = Ui::new(cli.global.json, cli.global.quiet, is_service);
    let result = logging::start_log(&cli.global, is_service)
        .and_then(|()| commands::run(cli.command, cli::command, &ui));
    let exit = result.unwrap_or_else(|failure| {
        report(&failure, ui.json);
        failure.exit()
    });
    exit.into()
}

/// Prints help, the version, or what is wrong with the command line.
fn explain(error: &clap::Error, json: bool) -> ExitCode {
    if json && error.use_stderr() {
        let text = error.render().to_string();
        let message = text.split("\n\n").next().unwrap_or(&text).trim_start_matches(CLAPS_NAME).trim_start();
        report(&Failure::usage(format!("{message}; see chiplog --help")), json);
        return Exit::Usage.into();
    }
    let closed = if is_mistake(error) {
        let text = error.render();
        let text = if logging::colours() { text.ansi().to_string() } else { text.to_string() };
        write!(std::io::stderr(), "{}", text.replacen(CLAPS_NAME, "chiplog:", 1)).is_err()
    } else {
        error.print().is_err()
    };
    let exit = if error.use_stderr() && !closed { Exit::Usage } else { Exit::Ok };
    exit.into()
}

/// How clap begins what it says about a mistake. All other errors begin with the program's name.
const CLAPS_NAME: &str = "error:";

/// Whether clap's text is about a mistake. A command without arguments prints its help.
fn is_mistake(error: &clap::Error) -> bool {
    error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
}

/// Reports a failure on standard error. A closed standard error is ignored.
fn report(failure: &Failure, json: bool) {
    if failure.quiet() {
        return;
    }
    let mut stderr = std::io::stderr().lock();
    let _ =
        if json { writeln!(stderr, "{}", failure.json()) } else { writeln!(stderr, "chiplog: {failure}") };
}
