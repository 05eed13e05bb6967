//! A view that runs: started, observed by its output, killed, waited for.
//!
//! Invariant: a view that is not waited for is killed when its handle is dropped, or when [`Processes::end`] is called.

use crate::Result;
use crate::views::Program;
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The longest that anything may take that takes seconds on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// The files of one view.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) db: PathBuf,
    /// `None`: this view keeps no copy of the log.
    pub(crate) copy: Option<PathBuf>,
}

/// All processes that were started.
#[derive(Clone, Default)]
pub(crate) struct Processes(Arc<Mutex<Started>>);

#[derive(Default)]
struct Started {
    children: Vec<Arc<Mutex<Child>>>,
    /// No more processes are started.
    ended: bool,
}

/// A view's process.
pub(crate) struct Process {
    name: String,
    child: Arc<Mutex<Child>>,
    said: Arc<Mutex<Said>>,
    /// The threads that read its output. They end with the process.
    listening: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Said {
    lines: Vec<String>,
    applied: u64,
}

/// The result of a view.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) success: bool,
    /// Its complete output.
    pub(crate) lines: Vec<String>,
}

impl Processes {
    /// Starts a view.
    pub(crate) fn start(
        &self,
        name: &str,
        program: &Program,
        cluster: &[String],
        files: &Files,
        until: u64,
    ) -> Result<Process> {
        if let Some(dir) = files.db.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut command = program.command();
        command.arg("--cluster").arg(cluster.join(",")).arg("--db").arg(&files.db);
        command.arg("--until").arg(until.to_string());
        if let Some(copy) = &files.copy {
            command.arg("--dir").arg(copy);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut started = lock(&self.0);
        if started.ended {
            return Err("this program ends".into());
        }
        let mut child = command.spawn().map_err(|e| format!("cannot start the view in {name}: {e}"))?;
        let said = Arc::<Mutex<Said>>::default();
        let mut listening = Vec::new();
        if let Some(out) = child.stdout.take() {
            listening.push(listen(out, said.clone()));
        }
        if let Some(err) = child.stderr.take() {
            listening.push(listen(err, said.clone()));
        }
        let child = Arc::new(Mutex::new(child));
        started.children.push(child.clone());
        Ok(Process { name: name.to_owned(), child, said, listening })
    }

    /// Kills all that still run.
    pub(crate) fn end(&self) {
        let mut started = lock(&self.0);
        started.ended = true;
        started.children.iter().for_each(|child| kill(child));
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills a process by SIGKILL. One that has ended is left alone.
fn kill(child: &Mutex<Child>) {
    let mut child = lock(child);
    let _ = child.kill();
    let _ = child.wait();
}

impl Process {
    /// The last record that its output reports as applied.
    pub(crate) fn applied(&self) -> u64 {
        lock(&self.said).applied
    }

    /// Waits until its output reports this record as applied.
    pub(crate) fn wait_for(&mut self, index: u64) -> Result<()> {
        let began = Instant::now();
        while self.applied() < index {
            let ended = lock(&self.child).try_wait()?.is_some();
            if ended && self.listening.iter().all(JoinHandle::is_finished) && self.applied() < index {
                return Err(format!(
                    "the view in {} ended early; its output:\n{}",
                    self.name,
                    self.lines().join("\n")
                )
                .into());
            }
            if began.elapsed() > PATIENCE {
                let lines = self.lines().join("\n");
                return Err(format!(
                    "the view in {} does not report that it has applied {index}:\n{lines}",
                    self.name
                )
                .into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn lines(&self) -> Vec<String> {
        lock(&self.said).lines.clone()
    }

    /// Kills it. Returns the last record that its output reports as applied.
    pub(crate) fn kill(mut self) -> u64 {
        kill(&self.child);
        self.listening.drain(..).for_each(|thread| _ = thread.join());
        self.applied()
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Result<Ended> {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = lock(&self.child).try_wait()? {
                break status;
            }
            if began.elapsed() > PATIENCE {
                return Err(
                    format!("the view in {} does not end:\n{}", self.name, self.lines().join("\n")).into()
                );
            }
            thread::sleep(Duration::from_millis(10));
        };
        self.listening.drain(..).for_each(|thread| _ = thread.join());
        Ok(Ended { success: status.success(), lines: self.lines() })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        kill(&self.child);
    }
}

impl Files {
    /// The files below this directory, which is made when a view is started.
    pub(crate) fn new(dir: &Path, copies: bool) -> Self {
        Self { db: dir.join("view.db"), copy: copies.then(|| dir.join("copy")) }
    }
}

fn listen(out: impl Read + Send + 'static, said: Arc<Mutex<Said>>) -> JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(std::result::Result::ok) {
            let mut said = lock(&said);
            said.applied = said.applied.max(applied(&line).unwrap_or(0));
            said.lines.push(line);
        }
    })
}

/// The index of a line of progress, `applied index I …`, or of the summary, `… last index I`.
fn applied(line: &str) -> Option<u64> {
    let (before, after) = line.split_once("index ")?;
    let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
    (before.ends_with("applied ") || before.ends_with("last ")).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_progress_are_told_from_others() {
        assert_eq!(applied("applied index 17 of 20, from 127.0.0.1:7411"), Some(17));
        assert_eq!(applied("3 records, 2 distinct words, 9 words, last index 30"), Some(30));
        assert_eq!(applied("index 5 is discarded"), None);
        assert_eq!(applied("applied index"), None);
    }
}
