//! How commands speak: results to standard output, as JSON or in words; progress to standard error.

use crate::common::failure::{Failure, Result};
use crate::common::logging::SAID;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// What the common options say of output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ui {
    /// Results as JSON.
    pub(crate) json: bool,
    /// No progress, no summaries.
    pub(crate) quiet: bool,
    /// Words about the work are logged like all other events: a service's output is read as one log.
    pub(crate) logs: bool,
}

const BAR: &str = "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
const COUNTER: &str = "{spinner} {msg} {binary_bytes}, {binary_bytes_per_sec}";

impl Ui {
    pub(crate) fn new(json: bool, quiet: bool, is_service: bool) -> Self {
        Self { json, quiet, logs: json || is_service }
    }

    /// A result: as JSON, or what `words` makes of it (nothing, when quiet).
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

    /// One object on a line of its own.
    pub(crate) fn json<T: Serialize>(&self, value: &T) -> Result<()> {
        print(&json_line(value)?)
    }

    /// A word about the work on standard error, unless it is to be quiet.
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

    /// A bar of bytes (a counter, when the total is not known) on standard error; nothing there unless it is a
    /// terminal and the user wants words.
    pub(crate) fn progress(&self, total: Option<u64>, doing: &'static str) -> ProgressBar {
        if self.quiet || self.json || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(10));
        let template = if total.is_some() { BAR } else { COUNTER }; // sound, as a test says
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(doing);
        bar.enable_steady_tick(Duration::from_millis(250));
        bar
    }
}

/// A value as JSON and a newline.
pub(crate) fn json_line<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value).map_err(|e| Failure::output(&e.into()))?;
    line.push(b'\n');
    Ok(line)
}

/// Writes to standard output at once.
pub(crate) fn print(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|e| Failure::output(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_sound() {
        for template in [BAR, COUNTER] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
