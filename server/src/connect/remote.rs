//! Remote: a log of a cluster, for commands that also work on a directory.
//!
//! The runtime keeps working while the command waits for something else, such as a slow pipe.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::output::Ui;
use crate::connect::cluster::{Asker, Connect, Dialler, OTHER_TOKEN_ADVICE, REPORT_AFTER, TOKEN_ADVICE};
use crate::connect::cluster_status::ClusterQuery;
use crate::connect::target::Servers;
use chiplog::ErrorKind;
use chiplog_net::client::{Client, ClientOptions, RemoteInfo};
use std::future::{Future, pending};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long to search for servers, and to try a call.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// How long the servers may take to say whether the log is full.
const LEADER_PATIENCE: Duration = Duration::from_millis(500);

/// The number of servers that are tried once more to explain why none answered.
const TRIED_AGAIN: usize = 2;

/// A client and its runtime.
pub(crate) struct Remote {
    runtime: Runtime,
    pub(crate) client: Client,
    given_servers: GivenServers,
    ui: Ui,
    /// Whether the wait for a leader was reported.
    reported: AtomicBool,
}

impl Remote {
    /// Finds the cluster. If that takes long, reports through `ui` why.
    ///
    /// # Errors
    /// `Unavailable`: no server answered in time. `NotFound`: they have no log of this name. Errors of the
    /// options' files.
    pub(crate) fn connect(target: &Servers, connect: &Connect, ui: &Ui) -> Result<Self> {
        let servers = &target.addresses;
        let mut options = connect.options()?;
        options.timeout = PATIENCE;
        options.log.clone_from(&target.log);
        let asker = Asker::new(connect, ui)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .thread_name("chiplog-client")
            .build()
            .map_err(|e| Failure::new(ErrorKind::Io, format!("cannot start threads: {e}")))?;
        let client = runtime.block_on(connected(servers, options, &asker, ui));
        let client = client.map_err(|error| unreachable(error, servers, connect, ui))?;
        let given_servers =
            GivenServers { dialler: asker.dialler().clone(), servers: target.clone(), ui: *ui };
        Ok(Self { runtime, client, given_servers, ui: *ui, reported: AtomicBool::new(false) })
    }

    /// The servers of the command line, to ask them beside the client's own calls.
    pub(crate) fn given_servers(&self) -> GivenServers {
        self.given_servers.clone()
    }

    /// Does work beside everything else, until the client ends.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// The state of the log, including everything that was acknowledged before the call. With `stale`: as the
    /// replicas that answer know it.
    ///
    /// # Errors
    /// `Unavailable`, `Timeout`: no leader answered in time, or with `stale`, no server.
    pub(crate) fn info(&self, stale: bool) -> Result<RemoteInfo> {
        self.info_or(stale, "; `--stale` shows what the replicas that answer have")
    }

    /// Like [`Self::info`], with other advice if no leader answers.
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

    /// Waits for work that needs a leader. If it takes long, reports that once.
    pub(crate) fn wait_for_leader<T>(&self, work: impl Future<Output = T>) -> T {
        let reporting = async {
            tokio::time::sleep(REPORT_AFTER).await;
            if !self.reported.swap(true, Ordering::Relaxed) {
                let seconds = PATIENCE.as_secs();
                self.ui.say(&format!("waiting up to {seconds} s for a leader with a majority"));
            }
            pending().await
        };
        self.wait(async {
            tokio::select! {
                done = work => done,
                never = reporting => never,
            }
        })
    }

    /// Runs the client's work until it is done.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

/// Servers that are asked why nothing is done.
#[derive(Clone)]
pub(crate) struct GivenServers {
    dialler: Dialler,
    servers: Servers,
    ui: Ui,
}

/// Why servers confirm nothing, as far as they say.
#[derive(Debug)]
pub(crate) enum Stall {
    /// The log's leader refuses appends for lack of room.
    Full(String),
    /// No server says that the log is full, and it may be.
    PerhapsFull(String),
    Other(String),
}

impl GivenServers {
    /// Why the servers may do nothing now: the log's leader says that it is full, or the reason of the first server that cannot be
    /// used, if all cannot.
    pub(crate) async fn why(&self) -> Stall {
        let mut query = ClusterQuery::for_leader(self.dialler.clone(), &self.servers, Duration::ZERO);
        let found = query.round(LEADER_PATIENCE).await;
        if let Some((server, leader)) = found.leading() {
            if !leader.full.is_empty() {
                return Stall::Full(format!("{server}: {}; `chiplog discard` makes room", leader.full));
            }
            // A token that may not see everything gets no positions, and nothing of the room.
            if leader.first > 0 {
                return Stall::Other(format!(
                    "{server} leads and answers, so it has no majority, or is slow, which `chiplog status {server}` shows; or the log has an \
                     append_bytes_per_second, which `chiplog options` shows"
                ));
            }
        }
        let mut first = None;
        for server in &self.servers.addresses {
            match self.dialler.complaint(server).await {
                None => {
                    return Stall::PerhapsFull(format!(
                        "{server} answers, so the leader has no majority, or the log is full or slow: `chiplog status {server}` shows which"
                    ));
                }
                Some(why) => _ = first.get_or_insert(why),
            }
        }
        Stall::Other(first.unwrap_or_default())
    }

    /// Prints or logs a message about the work, unless --quiet.
    pub(crate) fn say(&self, what: &str) {
        self.ui.say(what);
    }
}

/// Finds the cluster. If that takes long, reports through `ui` why.
pub(crate) async fn connected(
    servers: &[String],
    options: ClientOptions,
    asker: &Asker,
    ui: &Ui,
) -> chiplog::Result<Client> {
    tokio::select! {
        client = Client::connect(servers, options) => client,
        never = report_cause(asker.dialler(), servers, ui) => never,
    }
}

/// Reports after a while why the first of these servers cannot be used. Never returns.
async fn report_cause<T>(dialler: &Dialler, servers: &[String], ui: &Ui) -> T {
    tokio::time::sleep(REPORT_AFTER).await;
    if let Some(server) = servers.first()
        && let Some(why) = dialler.complaint(server).await
    {
        // The error, if none answers, says what to do.
        let why = why.split("; ").next().unwrap_or_default();
        ui.say(&format!("waiting up to {} s for a server: {why}", PATIENCE.as_secs()));
    }
    pending().await
}

/// Explains that no server answered, with advice found by one more try.
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
        Some(exit) => failure.with_exit(exit), // all were tried, and waiting helps with none
        None => failure,
    }
}

/// The failure of a call that a server refused, or that no server answered.
pub(crate) fn failure(error: chiplog::Error) -> Failure {
    let advice = match error.kind() {
        ErrorKind::Full => "; `chiplog discard` makes room",
        ErrorKind::Unauthenticated => TOKEN_ADVICE,
        ErrorKind::PermissionDenied => OTHER_TOKEN_ADVICE,
        ErrorKind::Sealed => "; `chiplog logs list` shows which logs are sealed",
        ErrorKind::NotFound => "; `chiplog logs list` shows the named logs, `chiplog logs create` makes one",
        ErrorKind::Corrupt => "; `chiplog status` shows the damage that the replicas found",
        _ => "",
    };
    Failure::of(&error, advice)
}
