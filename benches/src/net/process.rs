//! Process: other programs that a measurement needs. They end when their handle is dropped, and with this process,
//! however it ends.
//!
//! This program's own `bound` command starts a process: it asks the kernel to be killed with its parent, then becomes
//! the other program.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::iter;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program may take to start.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// This program, which runs itself for some measurements.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    program: PathBuf,
}

impl Own {
    /// # Errors
    /// A process cannot learn its own program.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { program: std::env::current_exe().context("finding this program")? })
    }

    /// A command of the benchmark's own.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(name);
        command
    }

    /// The program `chiplog`, beside this one.
    ///
    /// # Errors
    /// It was not built.
    pub(crate) fn chiplog(&self) -> Result<PathBuf> {
        let beside = self.program.with_file_name("chiplog");
        ensure!(
            beside.is_file(),
            "there is no {}: build it with cargo build --release -p chiplog-server",
            beside.display()
        );
        Ok(beside)
    }
}

/// Becomes the program of these arguments, and ends with the parent.
///
/// # Errors
/// The program cannot be run. Otherwise this does not return.
pub(crate) fn become_bound(command: &[OsString]) -> Result<()> {
    let Some((program, arguments)) = command.split_first() else { bail!("which program?") };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("running {}", program.to_string_lossy()))
}

/// A running program.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    said: PathBuf,
}

impl Running {
    /// Starts it; its output is written to the file `said`.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn start<A: AsRef<OsStr>>(
        own: &Own,
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        said: PathBuf,
    ) -> Result<Self> {
        let log = File::options().create(true).append(true).open(&said)?;
        let mut command = own.command("bound");
        command.arg("--").arg(program).args(arguments);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
        Ok(Self { child, said })
    }

    /// Starts a command of this program's own.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn start_own<A: Into<OsString>>(
        own: &Own,
        name: &str,
        arguments: impl IntoIterator<Item = A>,
        said: PathBuf,
    ) -> Result<Self> {
        let all = iter::once(name.into()).chain(arguments.into_iter().map(Into::into));
        Self::start(own, &own.program, all, said)
    }

    /// Waits until a program listens there.
    ///
    /// # Errors
    /// The program ended, or takes too long; with its output.
    pub(crate) fn listens(&mut self, address: &str) -> Result<()> {
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            if !matches!(self.child.try_wait(), Ok(None)) || begun.elapsed() > PATIENCE {
                bail!("nobody listens at {address}; the program said: {}", self.said());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Its output.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Processor time it has used, to the hundredth of a second.
    ///
    /// # Errors
    /// The process is gone.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        cpu(&stat).context("/proc/PID/stat makes no sense")
    }

    /// Memory of its own, without mapped files, in bytes.
    ///
    /// # Errors
    /// The process is gone.
    pub(crate) fn memory(&self) -> Result<u64> {
        Ok(crate::measure::Memory::of(self.child.id())?.anonymous)
    }

    /// Kills it by SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// User and system time of a line of `/proc/PID/stat`; the kernel counts hundredths there, whatever it counts
/// elsewhere.
fn cpu(stat: &str) -> Option<Duration> {
    // The second field is the program's name and may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(10 * ticks))
}

/// Addresses on this machine at which no program listens.
///
/// # Errors
/// Those of the system.
pub(crate) fn free_addresses(count: usize) -> Result<Vec<String>> {
    // All at once, so that none is assigned twice.
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    Ok(listeners.iter().map(|l| l.local_addr().map(|a| a.to_string())).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_are_found_behind_any_name() {
        let stat = "77 (a) b) S 1 77 77 0 -1 4194560 1 0 0 0 150 25 0 0 20 0 9 0 123 1 1";
        assert_eq!(cpu(stat), Some(Duration::from_millis(1750)));
        assert_eq!(cpu("77 (a"), None);
        let own = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(cpu(&own).is_some());
    }

    #[test]
    fn addresses_are_different() {
        let addresses = free_addresses(9).unwrap();
        let different: std::collections::BTreeSet<_> = addresses.iter().collect();
        assert_eq!(different.len(), 9);
    }
}
