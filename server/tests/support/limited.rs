//! Ends programs that hang, so that no test waits for ever for what they print.

use rustix::process::{Pid, Signal, kill_process};
use std::process::Child;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Longer than any program of a test runs.
const LIMIT: Duration = Duration::from_secs(300);

/// While this lives, a program is killed once [`LIMIT`] has passed. To be dropped before another process can have its number: once
/// somebody has waited for it.
pub(crate) struct Limited(#[expect(dead_code, reason = "its drop ends the thread")] Sender<()>);

impl Limited {
    pub(crate) fn new(child: &Child) -> Self {
        let (pid, (alive, ended)) = (Pid::from_child(child), channel());
        std::thread::spawn(move || {
            if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("process {} hangs, and is killed", pid.as_raw_nonzero());
                let _ = kill_process(pid, Signal::KILL); // it has just ended
            }
        });
        Self(alive)
    }
}
