//! Remote: the log that servers keep, for commands that work on a directory as well.
//!
//! The runtime works on while the command waits for something else, such as a slow pipe.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::output::Ui;
use crate::connect::cluster::{Asker, Connect, Dialler, TELL_AFTER, TOKEN_ADVICE};
use chiplog::ErrorKind;
use chiplog_net::client::{Client, RemoteInfo};
use std::future::{Future, pending};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long servers are looked for, and a call tried.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// So many servers are tried once more when none was there, to tell why.
const TRIED_AGAIN: usize = 2;

/// A client and what it runs on.
#[derive(Debug)]
pub(crate) struct Remote {
    runtime: Runtime,
    pub(crate) client: Client,
    ui: Ui,
    /// Whether it was said that a leader is waited for.
    told: AtomicBool,
}

impl Remote {
    /// Finds the cluster. If that takes long, `ui` is told why.
    ///
    /// # Errors
    /// `Unavailable`: no server answered in time; the files of the options.
    pub(crate) fn connect(servers: &[String], connect: &Connect, ui: &Ui) -> Result<Self> {
        let mut options = connect.options()?;
        options.timeout = PATIENCE;
        let asker = Asker::new(connect, ui)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .thread_name("chiplog-client")
            .build()
            .map_err(|e| Failure::new(ErrorKind::Io, format!("cannot start threads: {e}")))?;
        let client = runtime.block_on(async {
            tokio::select! {
                client = Client::connect(servers, options) => client,
                never = tell_why(asker.dialler(), servers, ui) => never,
            }
        });
        let client = client.map_err(|error| unreachable(error, servers, connect, ui))?;
        Ok(Self { runtime, client, ui: *ui, told: AtomicBool::new(false) })
    }

    /// How the log stands: with everything that was acknowledged before; or, stale, as the replicas know that answer.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`: no leader answered in time, or stale, no server.
    pub(crate) fn info(&self, stale: bool) -> Result<RemoteInfo> {
        self.info_or(stale, "; `--stale` shows what the replicas that answer have")
    }

    /// The same, with other advice where no leader answers.
    pub(crate) fn info_or(&self, stale: bool, otherwise: &str) -> Result<RemoteInfo> {
        if stale {
            return self.wait(self.client.info_stale()).map_err(failure);
        }
        let info = self.wait_for_leader(self.client.info());
        info.map_err(|error| {
            let advice = match error.kind() {
                ErrorKind::Unavailable | ErrorKind::Timeout => otherwise,
                _ => "",
            };
            Failure::new(error.kind(), format!("{error}{advice}"))
        })
    }

    /// Waits for what a leader is needed for; if that takes long, it is said, once.
    pub(crate) fn wait_for_leader<T>(&self, work: impl Future<Output = T>) -> T {
        let telling = async {
            tokio::time::sleep(TELL_AFTER).await;
            if !self.told.swap(true, Ordering::Relaxed) {
                let seconds = PATIENCE.as_secs();
                self.ui.say(&format!("waits up to {seconds} s for a leader that a majority answers"));
            }
            pending().await
        };
        self.wait(async {
            tokio::select! {
                done = work => done,
                never = telling => never,
            }
        })
    }

    /// Waits for what the client does.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

/// Says, once that has taken a while, what keeps the first of these servers from being used. Never returns.
async fn tell_why<T>(dialler: &Dialler, servers: &[String], ui: &Ui) -> T {
    tokio::time::sleep(TELL_AFTER).await;
    if let Some(server) = servers.first()
        && let Some(why) = dialler.complaint(server).await
    {
        ui.say(&format!("waits up to {} s for a server: {why}", PATIENCE.as_secs()));
    }
    pending().await
}

/// That no server was there; with what to do: one more try tells.
pub(crate) fn unreachable(error: chiplog::Error, servers: &[String], connect: &Connect, ui: &Ui) -> Failure {
    let kind = error.kind();
    let failure = failure(error);
    if !matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Unsupported) {
        return failure;
    }
    let Ok(asker) = Asker::new(connect, ui) else { return failure };
    let advice: Vec<_> = servers.iter().take(TRIED_AGAIN).map(|server| asker.advice(server)).collect();
    let words = advice.iter().flatten().map(|advice| advice.words).find(|words| !words.is_empty());
    let exits: Option<Vec<Exit>> = advice.iter().map(|advice| advice.as_ref()?.exit).collect();
    let failure = Failure::new(kind, format!("{failure}{}", words.unwrap_or_default()));
    match exits.filter(|_| servers.len() <= TRIED_AGAIN).and_then(|all| all.first().copied()) {
        Some(exit) => failure.with_exit(exit), // all were tried, and waiting mends none of them
        None => failure,
    }
}

/// What a server refused, or that none was there.
pub(crate) fn failure(error: chiplog::Error) -> Failure {
    let advice = match error.kind() {
        ErrorKind::Full => "; `chiplog discard` makes room",
        ErrorKind::Unauthenticated => TOKEN_ADVICE,
        ErrorKind::Corrupt => "; `chiplog status` tells what the replicas know of damage",
        _ => "",
    };
    Failure::new(error.kind(), format!("{error}{advice}"))
}
