//! Screen: a terminal that is redrawn in place and restored at the end.
//!
//! Invariant: the terminal is restored however the command ends, unless it is killed. The first `leave`
//! restores it; nothing is drawn after that.

use crate::common::failure::{Failure, Result};
use console::Term;
use rustix::stdio::stdin;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::{IsTerminal, Read};
use std::sync::{Arc, Mutex, PoisonError};

/// Switches to the alternate screen and hides the cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Moves to the top left corner; clears the rest of the line, of the page.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// The terminal while this command uses it.
#[derive(Clone)]
pub(super) struct Screen(Arc<Mutex<Taken>>);

struct Taken {
    term: Term,
    /// The terminal's modes before; None: standard input is not a terminal.
    keys: Option<Termios>,
    is_over: bool,
}

impl Screen {
    /// Takes the terminal. Keys arrive without Enter and are not echoed.
    ///
    /// # Errors
    /// Standard output cannot be written to.
    pub(super) fn take() -> Result<Self> {
        let term = Term::buffered_stdout();
        let keys = stdin().is_terminal().then(|| tcgetattr(stdin()).ok()).flatten();
        if let Some(keys) = &keys {
            let mut single = keys.clone();
            single.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            // If this fails, q needs Enter.
            let _ = tcsetattr(stdin(), OptionalActions::Now, &single);
        }
        let screen = Self(Arc::new(Mutex::new(Taken { term: term.clone(), keys, is_over: false })));
        term.write_str(ENTER).and_then(|()| term.flush()).map_err(|e| Failure::output(&e))?;
        Ok(screen)
    }

    /// Runs `stop` when q is pressed.
    pub(super) fn on_q(&self, stop: impl FnOnce() + Send + 'static) {
        let has_keys = self.0.lock().unwrap_or_else(PoisonError::into_inner).keys.is_some();
        let wait = move || {
            let pressed = std::io::stdin()
                .lock()
                .bytes()
                .map_while(std::result::Result::ok)
                .any(|key| matches!(key, b'q' | b'Q'));
            if pressed {
                stop();
            }
        };
        if has_keys {
            // If the thread cannot start, Ctrl-C still works.
            let _ = std::thread::Builder::new().name("keys".into()).spawn(wait);
        }
    }

    /// The current number of columns of the terminal.
    pub(super) fn width(&self) -> usize {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        usize::from(taken.term.size().1).max(1)
    }

    /// Shows as many of these lines as fit. No line may be wider than the terminal.
    ///
    /// # Errors
    /// Standard output cannot be written to.
    pub(super) fn draw(&self, text: &str) -> Result<()> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.is_over {
            return Ok(());
        }
        let height = usize::from(taken.term.size().0).max(1);
        let lines: Vec<String> =
            text.lines().take(height).map(|line| format!("{line}{CLEAR_LINE}")).collect();
        // No newline after the last line: the page would scroll.
        let page = format!("{HOME}{}{CLEAR_BELOW}", lines.join("\r\n"));
        taken.term.write_str(&page).and_then(|()| taken.term.flush()).map_err(|e| Failure::output(&e))
    }

    /// Restores the terminal.
    pub(super) fn leave(&self) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut taken.is_over, true) {
            return;
        }
        // A failure has no place left to be reported.
        let _ = taken.term.write_str(LEAVE).and_then(|()| taken.term.flush());
        if let Some(keys) = &taken.keys {
            let _ = tcsetattr(stdin(), OptionalActions::Now, keys);
        }
    }
}
