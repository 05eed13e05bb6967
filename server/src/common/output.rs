//! Output of the commands: results to standard output, as JSON or as text; progress to standard error.

use crate::common::failure::{Failure, Result};
use crate::common::logging::SAID;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// The common options that concern output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ui {
    /// Print results as JSON.
    pub(crate) json: bool,
    /// Print no progress and no summaries.
    pub(crate) quiet: bool,
    /// Log messages about the work like all other events, because a service's output is read as one log.
    pub(crate) logs: bool,
}

const BAR: &str = "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
const COUNTER: &str = "{spinner} {msg} {binary_bytes}, {binary_bytes_per_sec}";

impl Ui {
    pub(crate) fn new(json: bool, quiet: bool, is_service: bool) -> Self {
        Self { json, quiet, logs: json || is_service }
    }

    /// Prints a result: as JSON, or as the text that `words` returns (nothing with `quiet`).
    pub(crate) fn result<T: Serialize>(&self, value: &T, words: impl FnOnce(&T) -> String) -> Result<()> {
        if self.json {
            return self.json(value);
        }
        if self.quiet {
            return Ok(());
        }
        let mut text = words(value);
        if !text.ends_with('\n') {
            text.push('\n');
        }
        print(text.as_bytes())
    }

    /// Prints one object on a line of its own.
    pub(crate) fn json<T: Serialize>(&self, value: &T) -> Result<()> {
        print(&json_line(value)?)
    }

    /// Prints or logs a message about the work on standard error, unless `quiet`.
    pub(crate) fn say(&self, what: &str) {
        if self.quiet {
            return;
        }
        if self.logs {
            tracing::info!(target: SAID, "{what}");
        } else {
            eprintln!("chiplog: {what}");
        }
    }

    /// Prints or logs what a result does not say on standard error, unless `quiet`: nothing has failed.
    pub(crate) fn note(&self, what: &str) {
        match self.quiet || self.logs {
            true => self.say(what),
            false => eprintln!("note: {what}"),
        }
    }

    /// Prints or logs what no user may miss on standard error, also if `quiet`.
    pub(crate) fn warn(&self, what: &str) {
        if self.logs {
            tracing::warn!(target: SAID, "{what}");
        } else {
            eprintln!("chiplog: {what}");
        }
    }

    /// Asks on the terminal whether to go on. False without a terminal, and if the user wants JSON.
    pub(crate) fn agrees(&self, what: &str) -> bool {
        let (mut asks, mut answer) = (std::io::stderr(), String::new());
        if !self.json && std::io::stdin().is_terminal() && asks.is_terminal() {
            let _ = write!(asks, "chiplog: {what}. Go on? [y/N] ");
            let _ = std::io::stdin().read_line(&mut answer);
        }
        matches!(answer.trim(), "y" | "Y" | "yes")
    }

    /// A progress bar of bytes on standard error (a counter if the total is unknown). Hidden unless standard
    /// error is a terminal and the user wants text.
    pub(crate) fn progress(&self, total: Option<u64>, doing: &'static str) -> ProgressBar {
        if self.quiet || self.json || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(10));
        let template = if total.is_some() { BAR } else { COUNTER }; // a test checks that both parse
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(doing);
        bar.enable_steady_tick(Duration::from_millis(250));
        bar
    }
}

/// A value as JSON, followed by a newline.
pub(crate) fn json_line<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value).map_err(|e| Failure::output(&e.into()))?;
    line.push(b'\n');
    Ok(line)
}

/// Writes to standard output and flushes it.
pub(crate) fn print(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|e| Failure::output(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_templates_parse() {
        for template in [BAR, COUNTER] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
