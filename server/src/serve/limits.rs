//! Limits: what clients may use of a server, according to its configuration.
//!
//! Must not know: sockets.

use super::size::Size;
use crate::common::failure::{Failure, Result};
use chiplog::limits::CACHED_OBJECTS_MAX;
use chiplog::{Options, ReadMode};
use chiplog_net::listener::WINDOWS_PER_CONNECTION;
use chiplog_net::listener::connection::ConnectionLimits;
use chiplog_net::listener::memory_budget::{BudgetLimits, turns, unpackings};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The table `[limits]`. docs/configuration.md describes what happens at each limit.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    pub(crate) connections_max: u64,
    pub(crate) connections_per_address_max: u64,
    /// Open calls per connection.
    pub(crate) streams_max: u64,
    /// The number of bytes that a client may send on a stream that the server does not read.
    pub(crate) window_bytes: Size,
    /// Open calls on all connections.
    pub(crate) streams_total_max: u64,
    /// The share of `streams_total_max`, `inflight_bytes_max` and `answer_bytes_max` that one address, or one
    /// token, may use.
    pub(crate) share_percent: u64,
    pub(crate) header_bytes_max: Size,
    /// None: what the log's batches need, at least 64 MiB.
    pub(crate) message_bytes_max: Option<Size>,
    /// Bytes of received and unanswered messages, per connection.
    pub(crate) inflight_connection_bytes_max: Size,
    /// The same for all connections.
    pub(crate) inflight_bytes_max: Size,
    pub(crate) inflight_wait_millis: u64,
    /// Bytes of prepared and unsent answers, per connection.
    pub(crate) answer_connection_bytes_max: Size,
    /// The same for all connections.
    pub(crate) answer_bytes_max: Size,
    pub(crate) handshake_millis: u64,
    /// 0: no limit.
    pub(crate) idle_seconds: u64,
    /// 0: no limit.
    pub(crate) slow_reader_millis: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let (connection, budget) = (ConnectionLimits::default(), BudgetLimits::default());
        let size = |bytes: usize| Size(bytes as u64);
        Self {
            connections_max: connection.connections as u64,
            connections_per_address_max: connection.connections_per_address as u64,
            streams_max: connection.streams.into(),
            window_bytes: Size(connection.window_bytes.into()),
            streams_total_max: budget.streams as u64,
            share_percent: budget.share_percent.into(),
            header_bytes_max: Size(connection.header_bytes.into()),
            message_bytes_max: None,
            inflight_connection_bytes_max: size(budget.connection_bytes),
            inflight_bytes_max: size(budget.bytes),
            inflight_wait_millis: budget.wait.as_millis() as u64,
            answer_connection_bytes_max: size(budget.answer_connection_bytes),
            answer_bytes_max: size(budget.answer_bytes),
            handshake_millis: connection.handshake.as_millis() as u64,
            idle_seconds: connection.idle.map_or(0, |t| t.as_secs()),
            slow_reader_millis: connection.slow_reader.map_or(0, |t| t.as_millis() as u64),
        }
    }
}

/// Slices that are put at a time of a log, as in `core/`.
const SLICES_UNDER_WAY: u64 = 8;
/// Payload slices that are put at a time, and bytes of those that are kept in memory, as in `core/`.
const PAYLOADS_UNDER_WAY: u64 = 8;
const PAYLOADS_KEPT_BYTES: u64 = 64 << 20;
/// The memory of a server without clients.
const PROCESS_BYTES: u64 = 256 << 20;
/// The other replicas of a large cluster.
const PEERS: u64 = 6;
/// The memory of a connection without its windows: TLS, HTTP/2, its task.
const CONNECTION_BYTES: u64 = 128 << 10;
/// The memory of a call without its part of the budgets.
const STREAM_BYTES: u64 = 32 << 10;

/// A generous bound of what a message holds in addition to its batch.
const FRAME_BYTES: u64 = 1 << 20;
/// Clients of `logspec.Log` send requests of many records, whatever the size of a batch.
const MESSAGE_BYTES: u64 = 64 << 20;

/// The longest configurable times, in milliseconds and seconds.
const MILLIS_MAX: u64 = 3_600_000;
const SECONDS_MAX: u64 = 30 * 86_400;

impl Limits {
    /// Checks every bound. `batch_bytes_max` is that of the log, whose batches have to fit a message.
    pub(super) fn check(&self, batch_bytes_max: u32) -> Result<()> {
        let message = self.message_bytes_max(batch_bytes_max);
        within("connections_max", self.connections_max, 1, 1 << 20)?;
        within("connections_per_address_max", self.connections_per_address_max, 1, 1 << 20)?;
        within("streams_max", self.streams_max, 1, 1 << 20)?;
        within("window_bytes", self.window_bytes.0, 64 << 10, 16 << 20)?;
        within("streams_total_max", self.streams_total_max, 1, 1 << 20)?;
        within("share_percent", self.share_percent, 1, 100)?;
        within("header_bytes_max", self.header_bytes_max.0, 1 << 10, 64 << 10)?;
        within("message_bytes_max", message, u64::from(batch_bytes_max) + FRAME_BYTES, 1 << 30)?;
        within("inflight_connection_bytes_max", self.inflight_connection_bytes_max.0, 1 << 20, 1 << 38)?;
        within("inflight_bytes_max", self.inflight_bytes_max.0, 1 << 20, 1 << 38)?;
        within("inflight_wait_millis", self.inflight_wait_millis, 0, MILLIS_MAX)?;
        within("answer_connection_bytes_max", self.answer_connection_bytes_max.0, 1 << 20, 1 << 38)?;
        within("answer_bytes_max", self.answer_bytes_max.0, 1 << 20, 1 << 38)?;
        within("handshake_millis", self.handshake_millis, 100, MILLIS_MAX)?;
        within("idle_seconds", self.idle_seconds, 0, SECONDS_MAX)?;
        within("slow_reader_millis", self.slow_reader_millis, 0, MILLIS_MAX)
    }

    /// Lowers the limit to `room` connections. The limit of one address keeps its proportion.
    pub(super) fn lower_connections(&mut self, room: u64) {
        let part = u128::from(self.connections_per_address_max) * u128::from(room)
            / u128::from(self.connections_max.max(1));
        let part = u64::try_from(part).unwrap_or(u64::MAX).max(1);
        self.connections_per_address_max = self.connections_per_address_max.min(part);
        self.connections_max = room;
    }

    /// Explains a share per address or token that is less than twice the largest message: a client that sends
    /// such a message slowly makes all others of its address or token wait. None: the share is large enough.
    pub(super) fn small_share(&self, message_bytes_max: u64) -> Option<String> {
        let share = self.inflight_bytes_max.0.saturating_mul(self.share_percent) / 100;
        (share < 2 * message_bytes_max).then(|| {
            let enough = (200 * message_bytes_max).div_ceil(self.share_percent);
            format!(
                "limits.share_percent of limits.inflight_bytes_max is {share} bytes, less than two of the largest messages \
                 ({message_bytes_max} bytes each): one client can make the other appends of its address and token wait. Set \
                 limits.inflight_bytes_max to {enough} bytes or more, or lower limits.message_bytes_max"
            )
        })
    }

    /// The size of the largest message. `batch_bytes_max` is that of the log.
    pub(super) fn message_bytes_max(&self, batch_bytes_max: u32) -> u64 {
        let needed = u64::from(batch_bytes_max) + FRAME_BYTES;
        self.message_bytes_max.map_or(needed.max(MESSAGE_BYTES), |size| size.0)
    }

    pub(super) fn connection(&self) -> ConnectionLimits {
        let some = |time: Duration| (!time.is_zero()).then_some(time);
        let mut limits = ConnectionLimits::default();
        limits.connections = self.connections_max as usize;
        limits.connections_per_address = self.connections_per_address_max as usize;
        limits.streams = self.streams_max as u32; // bounded
        limits.header_bytes = self.header_bytes_max.0 as u32; // bounded
        limits.window_bytes = self.window_bytes.0 as u32; // bounded
        limits.handshake = Duration::from_millis(self.handshake_millis);
        limits.idle = some(Duration::from_secs(self.idle_seconds));
        limits.slow_reader = some(Duration::from_millis(self.slow_reader_millis));
        limits
    }

    /// The most memory that a server uses with these limits, its log and its cluster. docs/configuration.md
    /// has the formula. The system's file cache does not count.
    /// `logs`: the default log, and the groups of named logs with their system log.
    pub(super) fn memory_bytes_max(
        &self,
        log: &Options,
        peer_queue_bytes_max: u64,
        threads: u64,
        logs: u64,
    ) -> u64 {
        // Without mappings each concurrent reader holds a block, and a batch that the budget does not count.
        let reading = match log.read_mode {
            ReadMode::Read => u64::from(log.block_bytes_max) + u64::from(log.batch_bytes_max),
            _ => 0,
        };
        let inbox = log.cluster.as_ref().map_or(0, |cluster| cluster.inbox_bytes_max as u64);
        let windows =
            (self.connections_max.saturating_mul(WINDOWS_PER_CONNECTION.into())).min(self.streams_total_max);
        // Appends that wait for the store, slices under way, those that readers fetch and those that are kept for them, and an object
        // that is made of them.
        let payloads = match log.payload_slices {
            true => {
                let one = u64::from(log.slice_bytes) + u64::from(log.block_bytes_max);
                let kept = log.cache_bytes.min(PAYLOADS_KEPT_BYTES);
                let waiting = log.queue_bytes_max as u64 + PAYLOADS_UNDER_WAY * one;
                let with_payload = logs - u64::from(logs > 1); // the system log has none
                with_payload * (waiting + kept + u64::from(log.object_bytes)) + turns() as u64 * one
            }
            false => 0,
        };
        // Slices under way are parts of the mapped files, which the system keeps. Without mappings they are in memory.
        let slices = match (log.slice_interval, log.read_mode) {
            (Some(_), ReadMode::Read) => {
                SLICES_UNDER_WAY * u64::from(log.slice_bytes.max(log.block_bytes_max)) * logs
            }
            _ => 0,
        };
        [
            PROCESS_BYTES,
            self.inflight_bytes_max.0,
            self.answer_bytes_max.0,
            self.connections_max.saturating_mul(CONNECTION_BYTES),
            self.streams_total_max.saturating_mul(STREAM_BYTES),
            windows.saturating_mul(self.window_bytes.0),
            (log.queue_bytes_max as u64).saturating_mul(2 * logs),
            (turns() as u64).saturating_add(threads).saturating_mul(reading),
            (unpackings() as u64).saturating_mul(2 * u64::from(log.batch_bytes_max)),
            inbox.saturating_add(peer_queue_bytes_max.saturating_mul(PEERS)).saturating_mul(logs),
            payloads,
            slices,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    pub(super) fn budget(&self) -> BudgetLimits {
        BudgetLimits::default()
            .bytes(self.inflight_bytes_max.0 as usize)
            .connection_bytes(self.inflight_connection_bytes_max.0 as usize)
            .wait(Duration::from_millis(self.inflight_wait_millis))
            .answer_bytes(self.answer_bytes_max.0 as usize)
            .answer_connection_bytes(self.answer_connection_bytes_max.0 as usize)
            .streams(self.streams_total_max as usize)
            .connections_per_token(self.connections_per_address_max as usize)
            .share_percent(self.share_percent as u8) // bounded
    }
}

/// Descriptors for segments, replicas and probes.
const DESCRIPTORS: u64 = 1024;

/// Descriptors not used by clients' connections, if `logs` logs and groups have an object store.
pub(super) fn descriptors_of_logs(logs: u64) -> u64 {
    DESCRIPTORS + logs * CACHED_OBJECTS_MAX as u64
}

/// The number of client connections for which `descriptors` suffice, if `others` are for other things. If the process may open fewer
/// than twice as many, half of what it may open is for these.
pub(super) fn connections_within(descriptors: u64, others: u64) -> u64 {
    (descriptors - others.min(descriptors / 2)).max(1)
}

fn within(name: &str, value: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Failure::usage(format!("limits.{name} is {value}; it has to be from {min} to {max}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_log() {
        for (descriptors, connections) in [(0, 1), (1, 1), (64, 32), (1024, 512), (2048, 1024), (5120, 4096)]
        {
            assert_eq!(connections_within(descriptors, descriptors_of_logs(0)), connections);
        }
        assert_eq!(connections_within(4096 + 1536, descriptors_of_logs(2)), 4096);
    }

    /// A server that lowered its number of connections let one address use all of them.
    #[test]
    fn connections_per_address_shrink_with_the_total() {
        for (all, each, room, want) in
            [(4096, 1024, 512, 128), (4096, 4096, 512, 512), (100, 1, 50, 1), (8, 3, 2, 1)]
        {
            let mut limits =
                Limits { connections_max: all, connections_per_address_max: each, ..Limits::default() };
            limits.lower_connections(room);
            assert_eq!((limits.connections_max, limits.connections_per_address_max), (room, want));
        }
    }

    #[test]
    fn share_smaller_than_two_messages_is_reported() {
        let defaults = Limits::default();
        assert_eq!(defaults.small_share(MESSAGE_BYTES), None);
        assert!(defaults.small_share(MESSAGE_BYTES + 1).is_some());
        let mut small = Limits { inflight_bytes_max: Size(256 << 20), ..defaults };
        let told = small.small_share(MESSAGE_BYTES).unwrap();
        let enough: u64 = told.split(' ').filter_map(|word| word.parse().ok()).next_back().unwrap();
        small.inflight_bytes_max = Size(enough);
        assert_eq!(small.small_share(MESSAGE_BYTES), None, "{told}");
    }

    /// The bound was 19 GiB, 16 of them windows: too large to plan memory with.
    #[test]
    fn default_memory_is_bounded_by_four_gibibytes() {
        let mut log = Options::default();
        let bytes = Limits::default().memory_bytes_max(&log, 64 << 20, 3, 1);
        assert!(bytes <= 4 << 30, "{} MiB", bytes >> 20);
        log.read_mode = ReadMode::Read;
        let reading = (turns() as u64 + 3) * u64::from(log.block_bytes_max + log.batch_bytes_max);
        assert_eq!(Limits::default().memory_bytes_max(&log, 64 << 20, 3, 1), bytes + reading);
    }

    /// Each option sets its own limit and no other.
    #[test]
    fn every_option_is_used() {
        let limits = Limits {
            connections_max: 1,
            connections_per_address_max: 2,
            streams_max: 3,
            window_bytes: Size(16),
            streams_total_max: 12,
            share_percent: 13,
            header_bytes_max: Size(4),
            message_bytes_max: Some(Size(5)),
            inflight_connection_bytes_max: Size(6),
            inflight_bytes_max: Size(7),
            inflight_wait_millis: 8,
            answer_connection_bytes_max: Size(14),
            answer_bytes_max: Size(15),
            handshake_millis: 9,
            idle_seconds: 10,
            slow_reader_millis: 11,
        };
        let ConnectionLimits {
            connections,
            connections_per_address,
            streams,
            header_bytes,
            window_bytes,
            handshake,
            idle,
            slow_reader,
            ..
        } = limits.connection();
        assert_eq!((connections, connections_per_address, streams, header_bytes), (1, 2, 3, 4));
        assert_eq!(window_bytes, 16);
        assert_eq!(limits.message_bytes_max(1 << 30), 5);
        let budget = limits.budget();
        assert_eq!((budget.streams, budget.share_percent), (12, 13));
        assert_eq!(budget.connections_per_token, 2);
        assert_eq!((budget.answer_connection_bytes, budget.answer_bytes), (14, 15));
        let BudgetLimits { bytes, connection_bytes, wait, .. } = budget;
        assert_eq!((connection_bytes, bytes, wait), (6, 7, Duration::from_millis(8)));
        assert_eq!(handshake, Duration::from_millis(9));
        let for_ever = Limits { idle_seconds: 0, slow_reader_millis: 0, ..limits }.connection();
        assert_eq!((idle, for_ever.idle), (Some(Duration::from_secs(10)), None));
        assert_eq!((slow_reader, for_ever.slow_reader), (Some(Duration::from_millis(11)), None));
    }
}
