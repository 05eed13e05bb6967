//! What a producer is told: limits, deadlines and promises, each with its default and bounds.

use super::accumulator::{BATCH_BYTES_MIN, Bounds, FRAME_BYTES};
use crate::client::cluster::discovery::Limits;
use chiplog::{BATCH_BYTES_MAX, BATCH_RECORDS_MAX, Codec, Error, ErrorKind, Result, Sequence, SessionId};
use std::time::Duration;

/// Limits, deadlines and promises of a [`Producer`](crate::client::Producer).
///
/// ```
/// use std::time::Duration;
/// let mut options = chiplog_net::client::ProducerOptions::default();
/// options.codec = chiplog::Codec::Lz4;
/// options.linger = Duration::from_millis(2);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProducerOptions {
    /// How long a batch that is not full waits for more records, default 0: it goes as soon as it may. Less than
    /// `delivery_timeout`.
    pub linger: Duration,
    /// A batch goes when it is so large, default 256 KiB. A larger record goes alone.
    pub batch_bytes: usize,
    /// A batch goes when it has so many records, 1 to 2^20 and the default.
    pub batch_records: u32,
    /// How batches are compressed, default not at all. The producer's task does it.
    pub codec: Codec,
    /// Bytes of records that are not acknowledged yet, default 32 MiB; beyond it callers wait.
    pub buffer_bytes: usize,
    /// How long a caller waits for room before `Busy`, default 60 s.
    pub block_max: Duration,
    /// Batches under way at a time, 1 to 1,024, default 32; with `exactly_once` no more than the log remembers.
    pub inflight_max: u16,
    /// Each record is in the log once, whatever is sent again, in the order in which it was given. Default true. False:
    /// what is sent again after a failure can be there twice, and out of order.
    pub exactly_once: bool,
    /// Goes on in this session instead of opening one; the first batch has this number in it. For programs that keep what
    /// they have sent, and send it again after they were restarted: batches given under the numbers that they had are in
    /// the log once. Batches are to be given by [`send_batch`](crate::client::Producer::send_batch) then, each takes one number. Where
    /// the numbers cannot go on, the producer fails instead of going on in another session. Closing the producer, or dropping
    /// its last clone, closes the session in the end: what has to be known of its batches has to be kept by then.
    /// Default None.
    pub session: Option<(SessionId, Sequence)>,
    /// With batches under way and no answer for so long, the connection is given up and they are sent again, default
    /// 10 s. The largest batch has to get there in that time.
    pub request_timeout: Duration,
    /// A record that is not acknowledged for so long fails, default 120 s: as `Full`, `Busy` or `TooManySessions` if that
    /// is what it was refused with, and it surely is not in the log; else as `Timeout`, and it may be in the log all
    /// the same. Those behind it that were sent by then fail with it.
    pub delivery_timeout: Duration,
    /// How long the log may be full before records that wait for so long fail as `Full`, default 5 s: time for somebody
    /// to discard.
    pub full_max: Duration,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            linger: Duration::ZERO,
            batch_bytes: 256 << 10,
            batch_records: BATCH_RECORDS_MAX,
            codec: Codec::None,
            buffer_bytes: 32 << 20,
            block_max: Duration::from_secs(60),
            inflight_max: 32,
            exactly_once: true,
            session: None,
            request_timeout: Duration::from_secs(10),
            delivery_timeout: Duration::from_secs(120),
            full_max: Duration::from_secs(5),
        }
    }
}

impl ProducerOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |what: &str| Err(Error::new(ErrorKind::InvalidArgument, what));
        if !(BATCH_BYTES_MIN..=BATCH_BYTES_MAX).contains(&self.batch_bytes) {
            return refuse("option batch_bytes must be from 45 bytes to 256 MiB");
        }
        if !(1..=BATCH_RECORDS_MAX).contains(&self.batch_records) {
            return refuse("option batch_records must be from 1 to 1,048,576");
        }
        if !(1..=1024).contains(&self.inflight_max) {
            return refuse("option inflight_max must be from 1 to 1,024");
        }
        if self.request_timeout.is_zero() || self.delivery_timeout.is_zero() {
            return refuse("options request_timeout and delivery_timeout must be greater than zero");
        }
        if self.session.is_some_and(|(_, next)| next.get() == 0 || !self.exactly_once) {
            return refuse("option session must be at least 1, and requires exactly_once");
        }
        if self.linger >= self.delivery_timeout {
            return refuse("option linger must be less than delivery_timeout");
        }
        Ok(())
    }

    /// Of what is gathered, for servers with these limits.
    pub(crate) fn bounds(&self, limits: Limits) -> Bounds {
        let alone = limits.batch_bytes_max.saturating_sub(FRAME_BYTES);
        Bounds {
            batch_bytes: self.batch_bytes.min(limits.batch_bytes_max),
            batch_records: self.batch_records,
            record_bytes_max: limits.record_bytes_max.min(alone),
            buffer_bytes: self.buffer_bytes,
            linger: self.linger,
        }
    }
}
