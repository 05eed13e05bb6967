//! Options of a log: every limit and time-out, with its default and its bounds.

pub(crate) mod log_options;

use crate::cluster::options::ClusterOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{BATCH_BYTES_MAX, BATCH_HEADER_BYTES, RECORD_OVERHEAD_BYTES};
use crate::store::format::geometry::{
    LOG_BYTES, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, batch_room, logs_room, objects_max, opening_room,
    session_table_bytes_max,
};
use crate::store::helper::Helpers;
use crate::store::segment::ReadMode;
use crate::types::Timestamp;
use crate::vault::Vault;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A source of timestamps. The log itself makes them monotone. Tests replace it. [`Options::clock`] says what a wrong
/// clock does.
pub trait Clock: Debug + Send + Sync {
    /// The current time, in milliseconds since 1970.
    fn now(&self) -> Timestamp;
}

/// The machine's wall clock.
#[derive(Debug)]
struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

options! {
    /// How a log is opened. `Log::open` checks all limits and names the one that is out of bounds. Options are not
    /// stored: each opening brings its own. An existing segment keeps its size.
    ///
    /// ```
    /// use chiplog::{Log, Options};
    /// use std::time::Duration;
    /// let dir = tempfile::tempdir()?;
    /// let options = Options::with_segment_bytes(1 << 20).capacity_bytes(64 << 20).queue_timeout(Duration::from_secs(5));
    /// let log = Log::open(dir.path(), options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[derive(Clone, Debug)]
    pub struct Options {
        /// Whether to make a new log if the directory contains none. The directory and its parents are made if they are
        /// missing. Default true. Directories get mode 0700. Files get 0600, or 0640 in a directory that its group may
        /// read and others may not (0750). The umask applies too.
        pub create: bool,
        /// Size of a segment file: 64 KiB to 1 GiB, default 64 MiB. A log takes at least three of them on disk. Below
        /// 40 MiB, other limits have to be lowered too: see [`Self::with_segment_bytes`].
        pub segment_bytes: u32,
        /// The largest number of bytes of retained blocks; an append beyond it fails as `Full`. At least two segments.
        /// None (the default): until the disk is full. The files can use up to five segments more.
        pub capacity_bytes: Option<u64>,
        /// The largest record, default 16 MiB.
        pub record_bytes_max: u32,
        /// The largest encoded batch, default 32 MiB. A compressed batch may unpack to this size. It has to fit a
        /// segment.
        pub batch_bytes_max: u32,
        /// The size up to which one block collects batches, default 4 MiB. A single larger batch gets a block of its
        /// own.
        pub block_bytes_max: u32,
        /// Bytes of appends that may wait for the writer, default 64 MiB. Beyond it, appends block.
        pub queue_bytes_max: usize,
        /// Appends that may wait for the writer, default 65,536. Beyond it, appends block.
        pub queue_appends_max: usize,
        /// How long an append waits for room in the queue before it fails as `Busy`. Default 60 s.
        pub queue_timeout: Duration,
        /// How readers read the files. Default: through mappings.
        pub read_mode: ReadMode,
        /// How far a sequential reader reads ahead, default 8 MiB. 0 leaves it to the kernel.
        pub prefetch_bytes: u32,
        /// Keep at most about this many bytes: whole segments are discarded from the front. Default: keep all.
        pub retention_bytes: Option<u64>,
        /// Discard segments whose newest record is older than this, by the log's time. At least 1 ms. Default: keep
        /// all.
        ///
        /// This relies on the clock at opening. If the clock shows the far future, every full segment is older than
        /// this and is discarded permanently. See [`clock`](Self::clock).
        pub retention_age: Option<Duration>,
        /// The most exactly-once sessions open at a time, default 4,096. Together with `session_window` it bounds the
        /// table at the start of each segment, which may take up to an eighth of the segment.
        pub sessions_max: u32,
        /// How many of a session's latest batches the log remembers the indexes of: 1 to 1,024, default 128.
        pub session_window: u16,
        /// A session expires after sending nothing for this long, by the log's timestamps. At least 1 ms, default 24 h.
        /// A clock that jumps ahead while the log is open shortens this by at most half. See [`clock`](Self::clock).
        pub session_idle_max: Duration,
        /// The source of timestamps. Default: the wall clock.
        ///
        /// The log's time never goes back. While the log is open, its time is also bound to the machine's monotonic
        /// clock, which no administrator sets and which stops while the machine is suspended. If the wall clock jumps
        /// ahead, the log's time advances at most twice as fast as real time. One entry advances it by at most a minute
        /// more than the time that has passed. If the wall clock jumps back, the log's time stops until the clock
        /// catches up.
        ///
        /// **The log accepts the clock as it is at opening**, because a log may have been closed for years. If the
        /// clock then shows the far future, the log keeps that time:
        ///
        /// - The log's time stops there until real time catches up. All new records get that one timestamp, so
        ///   [`crate::Start::Timestamp`] cannot distinguish them.
        /// - All open sessions expire. Sessions opened later do not.
        /// - `retention_age` discards every full segment.
        ///
        /// Records and their order do not change. Set the clock before you open the log.
        pub clock: Arc<dyn Clock>,
        /// The object store in which objects of the log are kept: copies of stretches of its entries. None (the default):
        /// this replica reads and stores none. Give every replica the same one.
        pub vault: Option<Arc<dyn Vault>>,
        /// How many bytes of blocks an object has at most: 64 KiB to 512 MiB, default 64 MiB. A larger block is an object of
        /// its own.
        pub object_bytes: u32,
        /// Entries that are older than this become an object, even a small one. At least 1 ms. None (the default): only full
        /// objects are stored.
        pub object_age: Option<Duration>,
        /// Keep at most about this many bytes of records here that are in the object store: files of older ones are removed,
        /// and the records are read from the object store. A new replica with this limit, `local_age` or `fill_bytes` begins
        /// with records that are in no object. At least two segments. Default: keep all. The log's own limit is
        /// `retention_bytes`.
        pub local_bytes: Option<u64>,
        /// Remove files here whose records are in the object store and older than this, by the log's time. At least 1 ms.
        /// Default: keep all.
        pub local_age: Option<Duration>,
        /// Bytes of objects that are kept here after they were read, default 1 GiB, at least 8 MiB. Objects that readers are
        /// in are kept beyond it. Where the disk is full they go before the log is refused a file.
        pub cache_bytes: u64,
        /// Download whole objects at leisure, and keep this many bytes of the newest ones on this disk, also over restarts: readers of
        /// these records need no object store. Objects whose records are in files are not downloaded. Files and these objects together
        /// stay within `local_bytes` and `capacity_bytes`, and none is kept that is older than `local_age`. Where the disk is full they
        /// go before the log is refused a file. One object is downloaded at a time. At least 64 KiB; smaller than an object is as good
        /// as none. None (the default): none, and those that are here are removed at the opening. Needs `vault`.
        pub fill_bytes: Option<u64>,
        /// How long objects are kept after their records were discarded, default 1 day. A restart does not begin it again, as far
        /// as files say when they were discarded; nothing is deleted within a sixteenth of it after the start. Readers that a discard has overtaken can go on for as long.
        pub object_delete_delay: Duration,
        /// How long a pass over all stored objects takes, in which each is read and compared with what the log says of it, by
        /// the leader and by replicas that could store it again. All are looked for soon after the start, and once an hour. One in
        /// which a reader meets damage is examined soon, after what has to be stored. A missing or damaged object is stored again,
        /// with the same bytes, by a replica that has all its entries in files; those files stay until then, also beyond
        /// `local_bytes` and `local_age`. At least 100 ms, default 30 days. None: this replica looks for no object, and examines
        /// and repairs none.
        pub object_scrub: Option<Duration>,
        /// How often the leader puts the newest committed entries, which no object has yet, into the object store as a slice: so that the
        /// loss of all replicas loses about as much. 10 ms to 60 s. Appends do not wait for it. None (the default): only objects are
        /// stored. Needs `vault`. Each replica has an interval of its own, which counts while it leads: give all the same one. Each
        /// group of named logs stores slices of its own, and so does the catalogue.
        pub slice_interval: Option<Duration>,
        /// How many bytes of blocks a slice has at most: 512 KiB to 8 MiB, default 4 MiB. As many are stored at once, before the
        /// interval is over. A larger block is a slice of its own.
        pub slice_bytes: u32,
        /// Whether appends go to the object store, and only references to them are replicated: the durability class `object`. The leader
        /// gathers appends for `slice_interval`, or up to `slice_bytes`, and stores them together; each is acknowledged once it is stored
        /// and its reference is on a majority. Replicas have no payload in their files, and read it from the object store. Needs `vault`
        /// and `slice_interval` at every replica that can lead. Each group of named logs has payload slices of its own, with appends
        /// of all its logs; their catalogue has none. Once it is on it stays on for the log, or the group, until [`LogOption::PayloadSlices`](crate::LogOption::PayloadSlices) is set to 0. Default false.
        pub payload_slices: bool,
        /// Whether full segments of a group of named logs are copied in the order of their logs, so that one of many logs is read
        /// about as fast as a log on its own. A copy takes about the space of its segment, up to 1.7 times as much with small
        /// appends. None is made unless 16 segments fit the disk beside it, and copies are removed before the log is refused a file.
        /// Without effect on a log on its own. Default true.
        pub sorted_copies: bool,
        /// The replica's configuration in a cluster. None (the default): a log on its own, the only voter of a cluster
        /// of one.
        pub cluster: Option<ClusterOptions>,
        /// The helper threads that this group of named logs shares with others, one a disk. None: it has one of its own.
        pub(crate) helpers: Option<Helpers>,
        /// Whether this is the log of a catalogue, whose newest snapshot has to be in an object: `object_age` holds whatever the log was
        /// opened with before, and no object is deleted that a snapshot replaces until that snapshot is stored.
        pub(crate) is_catalogue: bool,
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            create: true,
            segment_bytes: 64 << 20,
            capacity_bytes: None,
            record_bytes_max: 16 << 20,
            batch_bytes_max: 32 << 20,
            block_bytes_max: 4 << 20,
            queue_bytes_max: 64 << 20,
            queue_appends_max: 65_536,
            queue_timeout: Duration::from_secs(60),
            read_mode: ReadMode::Map,
            prefetch_bytes: 8 << 20,
            retention_bytes: None,
            retention_age: None,
            sessions_max: 4096,
            session_window: 128,
            session_idle_max: Duration::from_secs(24 * 3600),
            clock: Arc::new(SystemClock),
            vault: None,
            object_bytes: 64 << 20,
            object_age: None,
            local_bytes: None,
            local_age: None,
            cache_bytes: 1 << 30,
            fill_bytes: None,
            object_delete_delay: Duration::from_secs(24 * 3600),
            object_scrub: Some(Duration::from_secs(30 * 24 * 3600)),
            slice_interval: None,
            slice_bytes: 4 << 20,
            payload_slices: false,
            sorted_copies: true,
            cluster: None,
            helpers: None,
            is_catalogue: false,
        }
    }
}

impl Options {
    /// The defaults, with every limit that depends on the segment's size lowered to fit it. For small logs and tests:
    /// `Options::with_segment_bytes(1 << 20)`.
    pub fn with_segment_bytes(segment_bytes: u32) -> Self {
        let room = batch_room(segment_bytes.max(SEGMENT_BYTES_MIN));
        let d = Self::default();
        let opening = opening_room(segment_bytes.max(SEGMENT_BYTES_MIN));
        let table = opening - opening / OBJECTS_SHARE;
        let session_window = if session_table_bytes_max(d.sessions_max, d.session_window) <= table {
            d.session_window
        } else {
            16
        };
        let sessions =
            (1..=d.sessions_max).rev().find(|n| session_table_bytes_max(*n, session_window) <= table);
        Self {
            sessions_max: sessions.unwrap_or(1),
            session_window,
            segment_bytes,
            batch_bytes_max: d.batch_bytes_max.min(room),
            record_bytes_max: d.record_bytes_max.min(room - FRAME_BYTES),
            block_bytes_max: d.block_bytes_max.min(room),
            ..d
        }
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option, its value and its bounds.
    pub fn check(&self) -> Result<()> {
        within(
            "segment_bytes",
            self.segment_bytes.into(),
            SEGMENT_BYTES_MIN.into(),
            SEGMENT_BYTES_MAX.into(),
        )?;
        let room = u64::from(batch_room(self.segment_bytes));
        let frame = u64::from(FRAME_BYTES);
        self.fits_segment("batch_bytes_max", self.batch_bytes_max, room)?;
        within("batch_bytes_max", self.batch_bytes_max.into(), 1024, room.min(BATCH_BYTES_MAX as u64))?;
        let record_bytes_max = u64::from(self.batch_bytes_max) - frame;
        within("record_bytes_max", self.record_bytes_max.into(), 1, record_bytes_max).map_err(|e| {
            let why = format!("batch_bytes_max is {}", self.batch_bytes_max);
            Error::new(e.kind(), format!("{e}, for {why}"))
        })?;
        self.fits_segment("block_bytes_max", self.block_bytes_max, room)?;
        within("block_bytes_max", self.block_bytes_max.into(), 4096, room)?;
        within("queue_bytes_max", self.queue_bytes_max as u64, self.batch_bytes_max.into(), 1 << 40)?;
        within("queue_appends_max", self.queue_appends_max as u64, 1, 1 << 24)?;
        within("prefetch_bytes", self.prefetch_bytes.into(), 0, 1 << 30)?;
        within("sessions_max", self.sessions_max.into(), 1, 1 << 20)?;
        within("session_window", self.session_window.into(), 1, 1024)?;
        let table = session_table_bytes_max(self.sessions_max, self.session_window);
        let room = opening_room(self.segment_bytes);
        if table > room {
            let what = format!(
                "sessions_max {} with session_window {} can take {table} bytes at the start of a segment, which has room for {room}; lower them or raise segment_bytes",
                self.sessions_max, self.session_window
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let segments = 2 * u64::from(self.segment_bytes);
        if let Some(bytes) = self.capacity_bytes {
            within("capacity_bytes", bytes, segments, u64::MAX)?;
        }
        if let Some(bytes) = self.retention_bytes {
            within("retention_bytes", bytes, segments, u64::MAX)?;
        }
        if let Some(age) = self.retention_age {
            at_least_1_ms("retention_age", age, "every full segment would be discarded; none keeps all")?;
        }
        within("object_bytes", self.object_bytes.into(), OBJECT_BYTES_MIN, OBJECT_BYTES_MAX)?;
        if let Some(age) = self.object_age {
            at_least_1_ms(
                "object_age",
                age,
                "every entry would be an object; none stores full objects only",
            )?;
        }
        if let Some(bytes) = self.local_bytes {
            within("local_bytes", bytes, segments, u64::MAX)?;
        }
        if self.object_scrub.is_some_and(|pass| pass < OBJECT_SCRUB_MIN) {
            let what = format!(
                "option object_scrub is {:?}; it must be at least {OBJECT_SCRUB_MIN:?}, or None",
                self.object_scrub.unwrap_or_default()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if let Some(age) = self.local_age {
            at_least_1_ms("local_age", age, "every stored file would be removed; none keeps all")?;
        }
        self.check_slices()?;
        if self.vault.is_some() && self.objects_max() < OBJECTS_MIN {
            let what = format!(
                "sessions_max {} with session_window {} leaves room for {} objects at the start of a segment of {} bytes; at \
                 least {OBJECTS_MIN} are needed: lower them or raise segment_bytes",
                self.sessions_max,
                self.session_window,
                self.objects_max(),
                self.segment_bytes
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        within("cache_bytes", self.cache_bytes, CACHE_BYTES_MIN, 1 << 50)?;
        if let Some(bytes) = self.fill_bytes {
            within("fill_bytes", bytes, OBJECT_BYTES_MIN, 1 << 50)?;
        }
        at_least_1_ms("session_idle_max", self.session_idle_max, "every session would expire at once")?;
        self.cluster.as_ref().map_or(Ok(()), ClusterOptions::check)
    }

    /// The most named logs that a shared group with these options can hold: openings of segments of `segment_bytes` have
    /// room for that number beside `sessions_max` sessions. Options that are set for a log take 16 bytes each of the 56 that
    /// a log takes there.
    pub fn logs_max(&self) -> usize {
        (logs_room(self.segment_bytes, self.sessions_max, self.session_window) / LOG_BYTES).saturating_sub(1)
    }

    /// The most objects of which the state of a log with these options can have rows: the openings of its segments have room for that
    /// number beside `sessions_max` sessions. A group of named logs with as many stores no more until some are discarded; larger
    /// `object_bytes` make fewer. In a log on its own older rows leave the state before that: [`LogOption::ObjectRows`].
    pub fn objects_max(&self) -> usize {
        objects_max(self.segment_bytes, self.sessions_max, self.session_window)
    }

    fn check_slices(&self) -> Result<()> {
        within("slice_bytes", self.slice_bytes.into(), SLICE_BYTES_MIN, SLICE_BYTES_MAX)?;
        let Some(interval) = self.slice_interval else {
            if self.payload_slices {
                let what = "option payload_slices is set, but slice_interval is not: it says how long appends are gathered; set it, \
                            or leave payload_slices out";
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            }
            return Ok(());
        };
        if !(SLICE_INTERVAL_MIN..=SLICE_INTERVAL_MAX).contains(&interval) {
            let what = format!(
                "option slice_interval is {interval:?}; it must be {SLICE_INTERVAL_MIN:?} to {SLICE_INTERVAL_MAX:?}, or None"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if self.vault.is_none() {
            let what = "option slice_interval is set, but vault is not: slices go to an object store; set vault, or leave it out";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        Ok(())
    }

    /// Checks whether a segment has room for `value`. If not, the error names `segment_bytes` where the caller has set
    /// it, and otherwise the option `name`.
    fn fits_segment(&self, name: &str, value: u32, room: u64) -> Result<()> {
        if u64::from(value) <= room {
            return Ok(());
        }
        if self.segment_bytes == Self::default().segment_bytes {
            let what = format!(
                "option {name} is {value}, but a segment has room for {room} bytes at a time: lower it, or raise segment_bytes"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let what = format!(
            "option segment_bytes is {}: a segment has room for {room} bytes at a time, but {name} is {value}; raise segment_bytes, or lower record_bytes_max, batch_bytes_max, block_bytes_max and sessions_max; `Options::with_segment_bytes` (in C chiplog_log_options_for_segments) sets options that fit together",
            self.segment_bytes
        );
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }
}

/// The part of an opening's room for tables that [`Options::with_segment_bytes`] leaves to objects: a quarter.
const OBJECTS_SHARE: usize = 4;
/// A log with fewer objects would soon have to stop storing them.
const OBJECTS_MIN: usize = 16;

/// The least of [`Options::object_scrub`].
const OBJECT_SCRUB_MIN: Duration = Duration::from_millis(100);
/// The bounds of [`Options::slice_interval`] and [`Options::slice_bytes`].
const SLICE_INTERVAL_MIN: Duration = Duration::from_millis(10);
const SLICE_INTERVAL_MAX: Duration = Duration::from_secs(60);
const SLICE_BYTES_MIN: u64 = 512 << 10;
const SLICE_BYTES_MAX: u64 = 8 << 20;
/// The bounds of [`Options::object_bytes`]. An object is at most that, or one block, and its opening; a segment file can hold it.
pub(crate) const OBJECT_BYTES_MIN: u64 = SEGMENT_BYTES_MIN as u64;
pub(crate) const OBJECT_BYTES_MAX: u64 = 512 << 20;
/// The least bytes of [`Options::cache_bytes`].
const CACHE_BYTES_MIN: u64 = 8 << 20;

/// The bytes that a record takes in addition to its own when it is appended alone.
const FRAME_BYTES: u32 = (BATCH_HEADER_BYTES + RECORD_OVERHEAD_BYTES) as u32;

fn within(name: &str, value: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let bounds = if max == u64::MAX { format!("at least {min}") } else { format!("from {min} to {max}") };
    Err(Error::new(ErrorKind::InvalidArgument, format!("option {name} is {value}; it has to be {bounds}")))
}

fn at_least_1_ms(name: &str, value: Duration, else_what: &str) -> Result<()> {
    if value >= Duration::from_millis(1) {
        return Ok(());
    }
    let what = format!("option {name} is {value:?}; it has to be at least 1 ms: {else_what}");
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::memory_transport::MemoryNetwork;
    use crate::cluster::options::Bootstrap;
    use crate::types::NodeId;

    /// Before, 0 was accepted and no append was ever accepted; other values looked like "no limit" and meant "nothing
    /// at all".
    #[test]
    fn limits_that_would_stop_the_log_are_refused() {
        let cluster = || ClusterOptions::new(NodeId(1), Bootstrap::Init, MemoryNetwork::new().transport());
        let of = |cluster| Options { cluster: Some(cluster), ..Options::default() };
        for (options, named) in [
            (
                of(ClusterOptions { uncommitted_bytes_max: 0, ..cluster() }),
                "cluster.uncommitted_bytes_max is 0",
            ),
            (of(ClusterOptions { inbox_bytes_max: 0, ..cluster() }), "cluster.inbox_bytes_max is 0"),
            (
                of(ClusterOptions { slow_disk_sync: Some(Duration::ZERO), ..cluster() }),
                "cluster.slow_disk_sync is 0ns",
            ),
            (of(ClusterOptions { election_timeout: Duration::MAX, ..cluster() }), "at most 3600s"),
            (Options { retention_age: Some(Duration::ZERO), ..Options::default() }, "retention_age is 0ns"),
            (Options { session_idle_max: Duration::ZERO, ..Options::default() }, "session_idle_max is 0ns"),
        ] {
            let error = options.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(named), "{named}: {error}");
        }
        of(cluster()).check().unwrap();
    }

    #[test]
    fn defaults_and_all_segment_sizes_are_valid() {
        Options::default().check().unwrap();
        for bytes in [SEGMENT_BYTES_MIN, 100_000, 1 << 20, 64 << 20, SEGMENT_BYTES_MAX] {
            Options::with_segment_bytes(bytes).check().unwrap();
        }
    }

    #[test]
    fn check_names_the_bad_option() {
        let error = Options { segment_bytes: 1, ..Options::default() }.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("segment_bytes is 1"), "{error}");
    }

    /// Callers that set only the segments' size got an error about a limit that they had never heard of.
    #[test]
    fn small_segments_error_names_all_limits_to_lower() {
        let d = || Options { segment_bytes: 1 << 20, ..Options::default() };
        let batch = d();
        let block = Options { batch_bytes_max: 1024, record_bytes_max: 100, ..d() };
        for (options, limit) in
            [(batch, "batch_bytes_max is 33554432"), (block, "block_bytes_max is 4194304")]
        {
            let error = options.check().unwrap_err().to_string();
            for named in
                ["option segment_bytes is 1048576", limit, "sessions_max", "chiplog_log_options_for_segments"]
            {
                assert!(error.contains(named), "{named}: {error}");
            }
        }
        let record = Options { batch_bytes_max: 1024, ..d() }.check().unwrap_err().to_string();
        assert!(record.contains("record_bytes_max is 16777216; it has to be from 1 to"), "{record}");
        assert!(record.contains("batch_bytes_max is 1024"), "{record}");
    }
}
