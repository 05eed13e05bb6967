//! Background jobs: a reader's slow work runs in tasks of its own. A job continues while no call waits for the reader,
//! and the next call does not start it again. Each job has its own deadline.

use crate::client::cluster::discovery::Avoid;
use crate::client::retry::deadline::within;
use crate::client::{Client, ReadFrom};
use crate::wire::proto::v1::{InfoRequest, ReadRequest, ReadResponse};
use crate::wire::status::{from_status, with_message};
use chiplog::{Error, ErrorKind, Index, Result};
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::{Status, Streaming};

/// The stream to open: where, and when.
pub(crate) struct Wanted {
    pub(crate) from: ReadFrom,
    pub(crate) avoid: Avoid,
    /// A follower's copy may be read, which may hold fewer records than the log.
    pub(crate) copies: bool,
    pub(crate) request: ReadRequest,
    pub(crate) not_before: Instant,
    pub(crate) deadline: Instant,
}

/// The result of opening a stream.
pub(crate) struct Opened {
    /// None: no server was found.
    pub(crate) server: Option<String>,
    pub(crate) stream: Result<Streaming<ReadResponse>>,
}

/// Opens a stream.
pub(crate) async fn open(client: Client, wanted: Wanted) -> Opened {
    sleep_until(wanted.not_before).await;
    let Wanted { from, avoid, copies, deadline, .. } = &wanted;
    let server = match client.servers().pick(from, avoid, *copies, *deadline).await {
        Ok(server) => server,
        Err(error) => return Opened { server: None, stream: Err(error) },
    };
    let stream = open_at(&client, &server, wanted.request, wanted.deadline).await;
    Opened { server: Some(server), stream }
}

async fn open_at(
    client: &Client,
    server: &str,
    request: ReadRequest,
    deadline: Instant,
) -> Result<Streaming<ReadResponse>> {
    // Other servers named it: if this server cannot be used, the others still can.
    let useless = |e| Error::new(ErrorKind::Unavailable, format!("{server}: {e}"));
    let mut stub = client.servers().separate_client(server).map_err(useless)?;
    let until = deadline.min(within(client.options().attempt_timeout));
    let failed = |status: Status| {
        let error = from_status(&status);
        with_message(&error, format!("{server}: {error}"))
    };
    match timeout_at(until, stub.read(request)).await {
        Ok(stream) => stream.map(|stream| stream.into_inner()).map_err(failed),
        Err(_) => Err(Error::new(ErrorKind::Unavailable, format!("{server} did not answer in time"))),
    }
}

/// The highest last index of all replicas, if one answers soon.
pub(crate) async fn newest(client: Client) -> Option<Index> {
    let soon = within(client.options().probe_timeout.saturating_mul(3));
    crate::client::cluster::local_info::info(&client, soon).await.ok().map(|info| Index(info.last))
}

/// Whether the reader prefers another server: the leader, or a server of its zone that has everything before `next`.
/// Also learns what this server says about the others.
pub(crate) async fn better_elsewhere(client: Client, from: ReadFrom, server: String, next: Index) -> bool {
    let (servers, probe) = (client.servers(), client.options().probe_timeout);
    let named = servers.learn(&server).await;
    match from {
        ReadFrom::Any => false,
        ReadFrom::Leader => {
            if named.as_ref() == Some(&server) {
                return false;
            }
            servers.depose(&server);
            let soon = within(probe.saturating_mul(3));
            servers.leader(soon).await.is_ok_and(|leader| leader != server)
        }
        ReadFrom::Nearest(zone) => {
            for near in servers.nearer(&zone, &server) {
                let Ok(mut stub) = servers.client(&near) else { continue };
                let request = InfoRequest { log: client.log_name(), allow_stale: true };
                let answer = timeout_at(within(probe), stub.info(request)).await;
                if matches!(answer, Ok(Ok(info)) if Index(info.get_ref().last).next() >= next) {
                    return true;
                }
            }
            false
        }
    }
}
