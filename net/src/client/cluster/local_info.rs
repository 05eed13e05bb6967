//! Local info: the state of the log as each replica knows it. Needs no leader and no majority.
//!
//! All are asked at the same time. The answer of a replica that leads is used. Otherwise it is the answer with the
//! highest last index, among those that arrive soon after the first.

use crate::client::retry::backoff::Backoff;
use crate::client::retry::deadline::within;
use crate::client::{Client, ErrorClass};
use crate::wire::proto::v1::{InfoRequest, InfoResponse};
use crate::wire::status::from_status;
use chiplog::{Error, ErrorKind, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

/// Returns what the best of the replicas knows; retries until `deadline`.
///
/// # Errors
/// As [`Client::info_stale`].
pub(crate) async fn info(client: &Client, deadline: Instant) -> Result<InfoResponse> {
    let mut backoff = Backoff::new(client.options().backoff_min, client.options().backoff_max);
    loop {
        let error = match round(client, deadline).await {
            Ok(info) => return Ok(info),
            Err(error) => error,
        };
        let wait = backoff.next();
        if ErrorClass::of(error.kind()) == ErrorClass::Fatal || Instant::now() + wait >= deadline {
            return Err(error);
        }
        sleep(wait).await;
    }
}

/// Asks every server once.
async fn round(client: &Client, deadline: Instant) -> Result<InfoResponse> {
    let (servers, options) = (client.servers(), client.options());
    let mut until = deadline.min(within(options.attempt_timeout));
    let mut asked = JoinSet::new();
    let mut failed = Error::new(ErrorKind::Unavailable, "no server answered in time");
    for address in servers.all() {
        // An invalid address says nothing about the other servers.
        let mut stub = match servers.client(&address) {
            Ok(stub) => stub,
            Err(error) => {
                failed = error;
                continue;
            }
        };
        let request = InfoRequest { log: client.log_name(), allow_stale: true };
        asked.spawn(async move { (address, stub.info(request).await) });
    }
    let log_id = servers.log_id();
    let mut best: Option<InfoResponse> = None;
    while let Ok(Some(answer)) = timeout_at(until, asked.join_next()).await {
        let Ok((address, answer)) = answer else { continue };
        let info = match answer {
            Ok(info) => info.into_inner(),
            Err(status) => {
                let error = from_status(&status);
                failed = Error::new(error.kind(), format!("{address}: {error}"));
                continue;
            }
        };
        if !log_id.is_empty() && info.log_id != log_id {
            continue; // of another cluster
        }
        if info.leader_node > 0 && info.leader_node == info.node {
            return Ok(info);
        }
        // It may have been the leader before.
        servers.depose(&address);
        if best.is_none() {
            until = until.min(within(options.probe_timeout));
        }
        if best.as_ref().is_none_or(|best| best.last < info.last) {
            best = Some(info);
        }
    }
    best.ok_or(failed)
}
