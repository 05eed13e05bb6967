//! Info: the state of the log, as a majority knows it or as this server does; once, or at each change.

use super::leader::Answered;
use super::{LogspecService, Replies, ServedLog, about_to_end, within};
use crate::served::log_slot::status_of;
use crate::wire::proto::logspec::InfoReply;
use crate::wire::proto::logspec::info_reply::{Ok as LogState, Reply};
use chiplog::{Index, Log, Reader, Start};
use futures_util::stream;
use std::future::poll_fn;
use std::time::Duration;
use tonic::Status;

/// The interval of checks for changes other than new records.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// A change of the used bytes is reported from this size on.
const NEWS_BYTES: u64 = 64 << 10;

impl LogspecService {
    /// Returns the state of the log; unless `stale`, as of a time after the call.
    pub(super) async fn info_now(&self, log: &ServedLog, stale: bool) -> Result<InfoReply, Status> {
        if !stale && let Err(error) = self.barrier(log).await {
            return match self.answer_to(log, &error).await {
                Answered::Redirect(redirect) => Ok(InfoReply { reply: Some(Reply::Redirect(redirect)) }),
                Answered::Full(status) | Answered::Failed(status) => Err(status),
            };
        }
        let state = self.state(log)?;
        Ok(InfoReply { reply: Some(Reply::Ok(state)) })
    }

    async fn barrier(&self, log: &Log) -> chiplog::Result<Index> {
        let time = self.limits.info_timeout;
        // The log enforces the time limit; the runtime's clock is for a writer that hangs in a sync.
        within(time + LOOK_INTERVAL, log.submit_barrier(time)?).await
    }

    /// The state that this server knows.
    fn state(&self, log: &Log) -> Result<LogState, Status> {
        // A log that is being repaired looks empty, and is not: it rejects readers.
        let reader = log.reader(Start::Next);
        reader.map_err(|error| status_of(log, &error))?;
        let status = log.status();
        Ok(LogState {
            first_index: status.first_index.get(),
            last_index: status.last_index.get(),
            bytes_used: status.bytes_used,
            bytes_total: status.bytes_capacity.unwrap_or_else(|| status.bytes_used + free_bytes(log)),
        })
    }
}

/// The free bytes of the log's disk, for a log without a limit.
fn free_bytes(log: &Log) -> u64 {
    rustix::fs::statvfs(log.path()).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Whether a change is reported: byte counts are approximate, and other data on the disk is no change of the log.
fn is_news(sent: &LogState, now: &LogState) -> bool {
    let range = |state: &LogState| (state.first_index, state.last_index);
    range(sent) != range(now) || sent.bytes_used.abs_diff(now.bytes_used) >= NEWS_BYTES
}

/// Returns the stream of the log's state: now, and at each change.
pub(super) fn changes(service: LogspecService, log: ServedLog, stale: bool) -> Replies<InfoReply> {
    let watch = Watch { service, log, stale, end: None, sent: None, over: false };
    Box::pin(stream::unfold(watch, |mut watch| async { watch.next().await.map(|reply| (reply, watch)) }))
}

struct Watch {
    service: LogspecService,
    log: ServedLog,
    stale: bool,
    /// Waits at the log's end.
    end: Option<Reader>,
    /// The last state that was sent.
    sent: Option<LogState>,
    over: bool,
}

impl Watch {
    async fn next(&mut self) -> Option<Result<InfoReply, Status>> {
        if self.over {
            return None;
        }
        let reply = match &self.sent {
            None => self.service.info_now(&self.log, self.stale).await,
            Some(_) => {
                let host = self.service.host.clone();
                tokio::select! {
                    biased;
                    () = host.drained() => Err(status_of(&self.log, &about_to_end())),
                    change = self.change() => change,
                }
            }
        };
        match &reply {
            Ok(InfoReply { reply: Some(Reply::Ok(state)) }) => self.sent = Some(*state),
            _ => self.over = true,
        }
        Some(reply)
    }

    /// Returns the next state that differs from the last one sent.
    async fn change(&mut self) -> Result<InfoReply, Status> {
        tokio::time::sleep(self.service.limits.info_interval).await;
        loop {
            let state = self.service.state(&self.log)?;
            if self.sent.is_none_or(|sent| is_news(&sent, &state)) {
                return Ok(InfoReply { reply: Some(Reply::Ok(state)) });
            }
            let more = self.more().await.map_err(|error| status_of(&self.log, &error))?;
            if more {
                self.end = None;
            }
        }
    }

    /// Waits for a new record (true), or for a while.
    async fn more(&mut self) -> chiplog::Result<bool> {
        let sent = Index(self.sent.map_or(0, |sent| sent.last_index));
        if self.end.as_ref().is_none_or(|end| end.position() != sent.next()) {
            match self.log.reader(Start::Index(sent.next())) {
                Ok(reader) => self.end = Some(reader),
                Err(_) => return Ok(true), // discarded beyond this position meanwhile
            }
        }
        let Some(end) = &self.end else { return Ok(true) };
        match tokio::time::timeout(LOOK_INTERVAL, poll_fn(|context| end.poll_more(context))).await {
            Ok(more) => more.map(|()| true),
            Err(_) => Ok(false),
        }
    }
}
