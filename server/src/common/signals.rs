//! Signals. The first Ctrl-C or SIGTERM ends a command in order; a later one ends the process. SIGHUP reloads.

use crate::common::failure::{Failure, Result};
use chiplog::ErrorKind;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::time::{Duration, Instant};

/// A signal that follows the first one within this time is the same one: programs that run others, such as `timeout`, pass on what the
/// terminal has sent to both, or signal a process and then its group.
const SAME: Duration = Duration::from_secs(1);

/// Runs `stop` on a thread of its own when the first signal arrives.
pub(crate) fn on_stop(stop: impl FnOnce() + Send + 'static) -> Result<()> {
    let failed = |e| Failure::new(ErrorKind::Io, format!("cannot wait for signals: {e}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let wait = move || {
        let mut arriving = signals.forever();
        if arriving.next().is_none() {
            return;
        }
        let first = Instant::now();
        // On another thread, because it can take long, and a second signal ends the process even then.
        if std::thread::Builder::new().name("stop".into()).spawn(stop).is_err() {
            let _ = emulate_default_handler(SIGTERM);
        }
        if let Some(again) = arriving.find(|_| first.elapsed() > SAME) {
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
