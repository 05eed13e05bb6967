//! Screen: a terminal that is drawn over again and again, and is left as it was.
//!
//! Invariant: however the command ends, unless it is killed, the terminal is given back: by whoever is told first that it
//! ends, and nothing is drawn after that.

use crate::common::failure::{Failure, Result};
use console::Term;
use rustix::stdio::stdin;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::{IsTerminal, Read};
use std::sync::{Arc, Mutex, PoisonError};

/// A page of its own, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the first place; clear what is left of the line, of the page.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// The terminal while it is this command's.
#[derive(Clone)]
pub(super) struct Screen(Arc<Mutex<Taken>>);

struct Taken {
    term: Term,
    /// How keys were read before; None: they do not come from a terminal.
    keys: Option<Termios>,
    is_over: bool,
}

impl Screen {
    /// Takes the terminal. Keys come without Enter and are not shown.
    ///
    /// # Errors
    /// It cannot be written to.
    pub(super) fn take() -> Result<Self> {
        let term = Term::buffered_stdout();
        let keys = stdin().is_terminal().then(|| tcgetattr(stdin()).ok()).flatten();
        if let Some(keys) = &keys {
            let mut single = keys.clone();
            single.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            // Without it, q needs Enter.
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
            // Without a thread there is Ctrl-C.
            let _ = std::thread::Builder::new().name("keys".into()).spawn(wait);
        }
    }

    /// Columns of the terminal now.
    pub(super) fn width(&self) -> usize {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        usize::from(taken.term.size().1).max(1)
    }

    /// Shows these lines, as many as fit, none of them wider than the terminal.
    ///
    /// # Errors
    /// It cannot be written to.
    pub(super) fn draw(&self, text: &str) -> Result<()> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.is_over {
            return Ok(());
        }
        let height = usize::from(taken.term.size().0).max(1);
        let lines: Vec<String> =
            text.lines().take(height).map(|line| format!("{line}{CLEAR_LINE}")).collect();
        // No new line behind the last one: the page would move up.
        let page = format!("{HOME}{}{CLEAR_BELOW}", lines.join("\r\n"));
        taken.term.write_str(&page).and_then(|()| taken.term.flush()).map_err(|e| Failure::output(&e))
    }

    /// Gives the terminal back.
    pub(super) fn leave(&self) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut taken.is_over, true) {
            return;
        }
        // Nobody is left to tell.
        let _ = taken.term.write_str(LEAVE).and_then(|()| taken.term.flush());
        if let Some(keys) = &taken.keys {
            let _ = tcsetattr(stdin(), OptionalActions::Now, keys);
        }
    }
}
