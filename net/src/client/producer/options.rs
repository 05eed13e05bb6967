//! A producer's options: limits, deadlines and guarantees, each with its default and bounds.

use super::accumulator::{BATCH_BYTES_MIN, Bounds, FRAME_BYTES};
use crate::client::cluster::discovery::Limits;
use chiplog::limits::{BATCH_BYTES_MAX, BATCH_RECORDS_MAX};
use chiplog::{Codec, Error, ErrorKind, Result, Sequence, SessionId, options};
use std::time::Duration;

options! {
    /// Limits, deadlines and guarantees of a [`Producer`](crate::client::Producer).
    ///
    /// ```
    /// use std::time::Duration;
    /// use chiplog_net::client::ProducerOptions;
    /// let options = ProducerOptions::default().codec(chiplog::Codec::Lz4).linger(Duration::from_millis(2));
    /// ```
    #[derive(Clone, Debug)]
    pub struct ProducerOptions {
        /// How long a batch that is not full waits for more records, default 0: it is sent as soon as possible. Must be
        /// less than `delivery_timeout`.
        pub linger: Duration,
        /// A batch is sent when it has this size, default 256 KiB. A larger record is sent alone.
        pub batch_bytes: usize,
        /// A batch is sent when it has this number of records, 1 to 2^20, default 2^20.
        pub batch_records: u32,
        /// The compression of batches, default none. The producer's task compresses.
        pub codec: Codec,
        /// The limit of unacknowledged records in bytes, default 32 MiB; at the limit callers wait.
        pub buffer_bytes: usize,
        /// How long a caller waits for room before `Busy`, default 60 s.
        pub block_max: Duration,
        /// The number of batches in flight, 1 to 1,024, default 32; with `exactly_once` no more than the log remembers.
        pub inflight_max: u16,
        /// Whether each record is in the log exactly once, in the order of the calls, whatever is sent again. Default
        /// true. If false, records that are sent again after a failure can be in the log twice and out of order.
        pub exactly_once: bool,
        /// Continues in this session instead of opening one; the first batch gets this sequence number. For programs
        /// that keep what they sent, and send it again after a restart: batches that get the same numbers again are in
        /// the log once. Such a program must use [`send_batch`](crate::client::Producer::send_batch): each batch takes
        /// one number. If the numbers cannot continue, the producer fails instead of opening another session. Closing
        /// the producer, or dropping its last clone, closes the session in the end; the program must have stored the
        /// results of its batches by then. Default None.
        pub session: Option<(SessionId, Sequence)>,
        /// With batches in flight and no answer for this long, the producer closes the connection and sends them again,
        /// default 10 s. The largest batch must be transferable in that time.
        pub request_timeout: Duration,
        /// A record that is not acknowledged for this long fails, default 120 s. The error is `Full`, `Busy` or
        /// `TooManySessions` if a server rejected the record with it and the record is not in the log. Otherwise it is
        /// `Timeout`, and the record may be in the log. Records behind it that were sent by then fail with it.
        pub delivery_timeout: Duration,
        /// Whether the producer ends once a batch has failed, default false: nothing behind that batch is sent, so the records in the log
        /// are the first ones that were given, without a gap. `delivery_timeout` and `full_max` then count from the last
        /// acknowledgement: records that wait behind others do not fail while those are acknowledged. A server that says when to try again,
        /// as behind a rate, is asked again then, if that is within ten `delivery_timeout` of the last acknowledgement; so is
        /// one whose room another producer took first. Needs `exactly_once`.
        pub ends_at_failure: bool,
        /// Once the log has been full for this long, records that have waited for this long fail as `Full`, default
        /// 5 s: time for an operator or a program to discard.
        pub full_max: Duration,
    }
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
            ends_at_failure: false,
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
            return refuse(
                "option session: its next sequence number must be at least 1, and exactly_once must be set",
            );
        }
        if self.ends_at_failure && !self.exactly_once {
            return refuse(
                "option ends_at_failure needs exactly_once: without it, batches behind one that failed can be in the log",
            );
        }
        if self.linger >= self.delivery_timeout {
            return refuse("option linger must be less than delivery_timeout");
        }
        Ok(())
    }

    /// The accumulator's bounds, for servers with these limits.
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
