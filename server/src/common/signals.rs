//! Signals. The first Ctrl-C or SIGTERM ends a command in order, the second ends the process. SIGHUP reloads.

use crate::common::failure::{Failure, Result};
use chiplog::ErrorKind;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Runs `stop` on a thread of its own when the first signal arrives.
pub(crate) fn on_stop(stop: impl FnOnce() + Send + 'static) -> Result<()> {
    let failed = |e| Failure::new(ErrorKind::Io, format!("cannot wait for signals: {e}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let wait = move || {
        let mut arriving = signals.forever();
        if arriving.next().is_some() {
            stop();
        }
        if let Some(again) = arriving.next() {
            let _ = emulate_default_handler(again);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(|_| ()).map_err(failed)
}

/// Runs `reload` on a thread of its own whenever SIGHUP arrives.
pub(crate) fn on_hangup(reload: impl Fn() + Send + 'static) -> Result<()> {
    let failed = |e| Failure::new(ErrorKind::Io, format!("cannot wait for signals: {e}"));
    let mut signals = Signals::new([SIGHUP]).map_err(failed)?;
    let wait = move || signals.forever().for_each(|_| reload());
    std::thread::Builder::new().name("hangup".into()).spawn(wait).map(|_| ()).map_err(failed)
}
