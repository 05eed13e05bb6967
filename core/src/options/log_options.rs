//! Options of the log: limits that hold for the whole log, not for one machine. They are stored in the log, so every
//! replica has the same values and a change of leader does not change them. Values and their bytes.
//!
//! Encoding, in a command's body and in an opening block: the options that are set, 16 bytes each, ascending by tag,
//! little-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | tag: the option's number |
//! | 4 | 4 | 0; in a log table the number of the log |
//! | 8 | 8 | value |
//!
//! Invariant: equal sets of options have equal bytes. An option that is not set has no bytes.
//!
//! Must not know: how options are changed, which code applies them.

use crate::error::{Error, ErrorKind, Result};
use crate::options::{OBJECT_BYTES_MAX, OBJECT_BYTES_MIN, Options};
use crate::record::batch::{
    BATCH_BYTES_MAX, BATCH_HEADER_BYTES, Malformed, RECORD_OVERHEAD_BYTES, u32_at, u64_at,
};
use crate::store::format::geometry::{LOG_OPTION_BYTES, batch_room, opening_room, session_table_bytes_max};
use crate::store::format::segment::{
    FORMAT_VERSION, FORMAT_VERSION_FOURTH, FORMAT_VERSION_SECOND, FORMAT_VERSION_THIRD,
};
use crate::types::NodeId;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The number of options.
const COUNT: usize = LogOption::ALL.len();

/// An option that can be set for the whole log. It has the name and the meaning of a field of [`Options`], and
/// overrides that field, where there is one.
///
/// ```
/// use chiplog::LogOption;
/// assert_eq!(LogOption::from_name("retention_bytes"), Some(LogOption::RetentionBytes));
/// assert_eq!(LogOption::SessionsMax.name(), "sessions_max");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LogOption {
    /// [`Options::retention_bytes`], in bytes. `u64::MAX`: keep all.
    RetentionBytes = 1,
    /// [`Options::retention_age`], in milliseconds, from 1. `u64::MAX`: keep all.
    RetentionAge = 2,
    /// [`Options::capacity_bytes`], in bytes. `u64::MAX`: until the disk is full. Of a named log: its quota. Once the log keeps that
    /// many bytes of batches, its appends are refused as `Full`; those that wait in the queue by then are appended. All bytes of a log
    /// that has discarded nothing count. Otherwise they are counted from the segment or object in which it begins, whose records count as
    /// equally large. That is looked up when it matters, by each leader: until then no log becomes full.
    CapacityBytes = 3,
    /// [`Options::record_bytes_max`], in bytes.
    RecordBytesMax = 4,
    /// [`Options::sessions_max`]: 1 to 2^20.
    SessionsMax = 5,
    /// [`Options::session_window`]: 1 to 1,024.
    SessionWindow = 6,
    /// [`Options::session_idle_max`], in milliseconds, from 1. Applies to sessions opened after the change.
    SessionIdleMax = 7,
    /// How many bytes may be appended to the log in a second, on average: from 1; `u64::MAX`: no limit. No field of
    /// [`Options`]. Appends beyond it wait for up to `queue_timeout`, then fail with `Busy`, and the message says when to try
    /// again. A log that was idle may take what it saved in a second at once. The leader applies it to what its callers
    /// append; a retry within a session counts as well.
    AppendBytesPerSecond = 8,
    /// [`Options::object_bytes`]: 64 KiB to 512 MiB. Once it is set, the log has objects, and it cannot be unset: records may
    /// be in the object store alone.
    ObjectBytes = 9,
    /// [`Options::object_age`], in milliseconds, from 1. `u64::MAX`: none.
    ObjectAge = 10,
    /// [`Options::payload_slices`]: 1 or 0. Set to 0, later appends are replicated whole again. It cannot be unset: the log may have
    /// references.
    PayloadSlices = 11,
    /// How many objects, at least, the log's own state has rows of: 2 to 65,536. The rows of older ones are in objects alone. No field of
    /// [`Options`]: the leader sets it to 1,024 once the log has half of the objects that there is room for. It cannot be unset.
    ObjectRows = 12,
}

impl LogOption {
    /// All options.
    pub const ALL: [Self; 12] = [
        Self::RetentionBytes,
        Self::RetentionAge,
        Self::CapacityBytes,
        Self::RecordBytesMax,
        Self::SessionsMax,
        Self::SessionWindow,
        Self::SessionIdleMax,
        Self::AppendBytesPerSecond,
        Self::ObjectBytes,
        Self::ObjectAge,
        Self::PayloadSlices,
        Self::ObjectRows,
    ];

    /// The options of a single named log. All others hold for its whole group. Retention and the rate of appends cannot be set for a
    /// group. The rest can: then the lower one of two limits applies, and of two idle times the log's. The capacity of a group is that of
    /// all its logs together.
    pub const OF_NAMED_LOGS: [Self; 7] = [
        Self::RetentionBytes,
        Self::RetentionAge,
        Self::CapacityBytes,
        Self::RecordBytesMax,
        Self::SessionsMax,
        Self::SessionIdleMax,
        Self::AppendBytesPerSecond,
    ];

    /// Whether a group of named logs cannot have it: it is of each log alone.
    pub(crate) fn is_of_named_logs_alone(self) -> bool {
        matches!(self, Self::RetentionBytes | Self::RetentionAge | Self::AppendBytesPerSecond)
    }

    /// Whether a higher value can need more room in a segment than a member's segments have.
    pub(crate) fn takes_room(self) -> bool {
        matches!(self, Self::RecordBytesMax | Self::SessionsMax | Self::SessionWindow)
    }

    /// The option's name: that of the field of [`Options`].
    pub fn name(self) -> &'static str {
        match self {
            Self::RetentionBytes => "retention_bytes",
            Self::RetentionAge => "retention_age",
            Self::CapacityBytes => "capacity_bytes",
            Self::RecordBytesMax => "record_bytes_max",
            Self::SessionsMax => "sessions_max",
            Self::SessionWindow => "session_window",
            Self::SessionIdleMax => "session_idle_max",
            Self::AppendBytesPerSecond => "append_bytes_per_second",
            Self::ObjectBytes => "object_bytes",
            Self::ObjectAge => "object_age",
            Self::PayloadSlices => "payload_slices",
            Self::ObjectRows => "object_rows",
        }
    }

    /// The option with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|option| option.name() == name)
    }

    fn from_tag(tag: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|option| *option as u32 == tag)
    }

    fn at(self) -> usize {
        self as usize - 1
    }

    fn bit(self) -> u32 {
        1 << self.at()
    }

    /// The bounds of the format. A replica's segment size can narrow them.
    fn bounds(self) -> RangeInclusive<u64> {
        match self {
            Self::RetentionBytes | Self::CapacityBytes => (128 << 10)..=u64::MAX,
            Self::RetentionAge | Self::SessionIdleMax | Self::AppendBytesPerSecond | Self::ObjectAge => {
                1..=u64::MAX
            }
            Self::ObjectBytes => OBJECT_BYTES_MIN..=OBJECT_BYTES_MAX,
            Self::RecordBytesMax => 1..=(BATCH_BYTES_MAX - BATCH_HEADER_BYTES - RECORD_OVERHEAD_BYTES) as u64,
            Self::SessionsMax => 1..=1 << 20,
            Self::SessionWindow => 1..=1024,
            Self::PayloadSlices => 0..=1,
            Self::ObjectRows => 2..=1 << 16,
        }
    }

    /// Formats a value with its unit. None: no limit.
    fn words(self, value: Option<u64>) -> String {
        let is_age = matches!(self, Self::RetentionAge | Self::SessionIdleMax | Self::ObjectAge);
        match value.filter(|value| *value < u64::MAX) {
            None => "none".to_owned(),
            Some(millis) if is_age && millis.is_multiple_of(1000) => format!("{} s", millis / 1000),
            Some(millis) if is_age => format!("{millis} ms"),
            Some(value) => value.to_string(),
        }
    }

    /// Formats this option's value in `options`.
    pub(crate) fn words_of(self, options: &Options) -> String {
        self.words(self.own(options))
    }

    /// This option's value in a server's own options; None: no limit.
    fn own(self, options: &Options) -> Option<u64> {
        match self {
            Self::RetentionBytes => options.retention_bytes,
            Self::RetentionAge => options.retention_age.map(millis),
            Self::CapacityBytes => options.capacity_bytes,
            Self::RecordBytesMax => Some(options.record_bytes_max.into()),
            Self::SessionsMax => Some(options.sessions_max.into()),
            Self::SessionWindow => Some(options.session_window.into()),
            Self::SessionIdleMax => Some(millis(options.session_idle_max)),
            // It decides nothing at a replica by itself: one without an object store can be a member.
            Self::AppendBytesPerSecond | Self::PayloadSlices | Self::ObjectRows => None,
            Self::ObjectBytes => Some(options.object_bytes.into()),
            Self::ObjectAge => options.object_age.map(millis),
        }
    }
}

impl fmt::Display for LogOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The options that are set for a log. For an option that is not set, the leader's own value holds.
///
/// ```
/// use chiplog::{LogOption, LogOptions};
/// let mut options = LogOptions::default();
/// assert_eq!(options.get(LogOption::SessionsMax), None);
/// options.set(LogOption::SessionsMax, Some(100));
/// assert_eq!(options.iter().collect::<Vec<_>>(), [(LogOption::SessionsMax, 100)]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// A bit for each option that is set.
    set: u32,
    /// 0 for an option that is not set. Always initialized, so that checkers of memory find nothing to say.
    values: [u64; COUNT],
}

impl fmt::Display for LogOptions {
    /// `retention_bytes 1073741824, sessions_max 100`, or `none set`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none set");
        }
        for (n, (option, value)) in self.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{option} {}", option.words(Some(value)))?;
        }
        Ok(())
    }
}

impl LogOptions {
    /// The value of an option, if it is set.
    pub fn get(&self, option: LogOption) -> Option<u64> {
        (self.set & option.bit() != 0).then_some(self.values[option.at()])
    }

    /// Sets an option in this value; None removes it. The log changes only with [`Log::set_log_options`].
    ///
    /// [`Log::set_log_options`]: crate::Log::set_log_options
    pub fn set(&mut self, option: LogOption, value: Option<u64>) {
        self.values[option.at()] = value.unwrap_or(0);
        match value {
            Some(_) => self.set |= option.bit(),
            None => self.set &= !option.bit(),
        }
    }

    /// The options that are set, in the order of [`LogOption::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (LogOption, u64)> + '_ {
        LogOption::ALL.into_iter().filter_map(|option| Some((option, self.get(option)?)))
    }

    /// Whether no option is set.
    pub fn is_empty(&self) -> bool {
        self.set == 0
    }

    /// Returns these options with `changes` made.
    pub(crate) fn with(mut self, changes: &[(LogOption, Option<u64>)]) -> Self {
        changes.iter().for_each(|(option, value)| self.set(*option, *value));
        self
    }

    /// Returns a server's own options, overridden by these.
    pub(crate) fn over(&self, own: &Options) -> Options {
        let mut options = own.clone();
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        for (option, value) in self.iter() {
            match option {
                LogOption::RetentionBytes => options.retention_bytes = Some(value),
                LogOption::RetentionAge => options.retention_age = Some(Duration::from_millis(value)),
                LogOption::CapacityBytes => options.capacity_bytes = Some(value),
                LogOption::RecordBytesMax => options.record_bytes_max = narrow(value),
                LogOption::SessionsMax => options.sessions_max = narrow(value),
                LogOption::SessionWindow => {
                    options.session_window = u16::try_from(value).unwrap_or(u16::MAX);
                }
                LogOption::SessionIdleMax => options.session_idle_max = Duration::from_millis(value),
                // A replica without an object store can be a member.
                LogOption::AppendBytesPerSecond | LogOption::PayloadSlices | LogOption::ObjectRows => {}
                LogOption::ObjectBytes => options.object_bytes = narrow(value),
                LogOption::ObjectAge => options.object_age = Some(Duration::from_millis(value)),
            }
        }
        options
    }

    /// Checks whether a server can apply these options: its own options, overridden by these, must be valid.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option, its value and its bounds.
    pub(crate) fn check(&self, own: &Options) -> Result<()> {
        self.check_bounds()?;
        self.over(own).check()
    }

    /// The version of the format that members need to read these options.
    pub(crate) fn version(&self) -> u32 {
        let version = |option| match option {
            LogOption::ObjectRows => FORMAT_VERSION,
            LogOption::PayloadSlices => FORMAT_VERSION_FOURTH,
            LogOption::ObjectBytes | LogOption::ObjectAge => FORMAT_VERSION_THIRD,
            _ => FORMAT_VERSION_SECOND,
        };
        self.iter().map(|(option, _)| version(option)).max().unwrap_or(FORMAT_VERSION_SECOND)
    }

    fn check_bounds(&self) -> Result<()> {
        for (option, value) in self.iter() {
            if !option.bounds().contains(&value) {
                let (min, max) = option.bounds().into_inner();
                let [value, least, most] = [value, min, max].map(|value| option.words(Some(value)));
                let bounds = if max == u64::MAX {
                    format!("at least {least}")
                } else {
                    format!("from {least} to {most}")
                };
                let what = format!("option {option} of the log is {value}; it has to be {bounds}");
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            }
        }
        Ok(())
    }

    /// Checks options that are to be set for one of many named logs.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option.
    pub(crate) fn check_of_named_log(&self) -> Result<()> {
        self.check_bounds()?;
        let Some((option, _)) = self.iter().find(|(option, _)| !LogOption::OF_NAMED_LOGS.contains(option))
        else {
            return Ok(());
        };
        let names = LogOption::OF_NAMED_LOGS.map(LogOption::name).join(", ");
        let what = format!(
            "option {option} is not one of a single named log: those are {names}; set it for the log's group"
        );
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }

    /// Checks whether the segments of a member have room for what these options allow: the largest record, and the
    /// session table at the start of each segment. `changed`: the options to check. `leader`: the values of options
    /// that are not set.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the member, the option and the room.
    pub(crate) fn check_room_of(
        &self,
        node: NodeId,
        segment_bytes: u32,
        changed: &[LogOption],
        leader: &Options,
    ) -> Result<()> {
        let is_set = |option: LogOption| changed.contains(&option) && self.get(option).is_some();
        let refuse = |what: String| {
            let what = format!(
                "node {node} has segments of {segment_bytes} bytes, which have room for {what}. Nothing was changed: set less, \
                 or open node {node} with a larger segment_bytes"
            );
            Err(Error::new(ErrorKind::InvalidArgument, what))
        };
        let frame = (BATCH_HEADER_BYTES + RECORD_OVERHEAD_BYTES) as u64;
        let largest = u64::from(batch_room(segment_bytes)) - frame;
        if let Some(bytes) = self.get(LogOption::RecordBytesMax).filter(|_| is_set(LogOption::RecordBytesMax))
            && bytes > largest
        {
            return refuse(format!("records of {largest} bytes: record_bytes_max of {bytes} is more"));
        }
        if is_set(LogOption::SessionsMax) || is_set(LogOption::SessionWindow) {
            let options = self.over(leader);
            let (table, room) = (
                session_table_bytes_max(options.sessions_max, options.session_window),
                opening_room(segment_bytes),
            );
            if table > room {
                return refuse(format!(
                    "{room} bytes of sessions: sessions_max of {} with session_window of {} takes {table}",
                    options.sessions_max, options.session_window
                ));
            }
        }
        Ok(())
    }

    /// Returns the differences between a server's own options and these, as text. Options that the server left at their
    /// defaults are skipped.
    pub(crate) fn differences(&self, own: &Options) -> Vec<String> {
        let (plain, fitted) = (Options::default(), Options::with_segment_bytes(own.segment_bytes));
        let told = |option: LogOption| {
            let own = option.own(own);
            own != option.own(&plain) && own != option.own(&fitted)
        };
        let differs = |(option, value): &(LogOption, u64)| option.own(own) != Some(*value) && told(*option);
        let words = |(option, value): (LogOption, u64)| {
            format!("{option} is {} for the log and {} here", option.words(Some(value)), option.words_of(own))
        };
        self.iter().filter(differs).map(words).collect()
    }

    /// The number of bytes that [`Self::encode`] returns.
    pub(crate) fn encoded_bytes(&self) -> usize {
        self.iter().count() * LOG_OPTION_BYTES
    }

    /// Encodes the options for a command or an opening block.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(COUNT * LOG_OPTION_BYTES);
        for (option, value) in self.iter() {
            b.extend_from_slice(&(option as u32).to_le_bytes());
            b.extend_from_slice(&[0; 4]);
            b.extend_from_slice(&value.to_le_bytes());
        }
        b
    }

    /// The reverse of [`Self::encode`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (entries, rest) = bytes.as_chunks::<LOG_OPTION_BYTES>();
        if !rest.is_empty() {
            return Err("options of the log are cut off");
        }
        let (mut options, mut before) = (Self::default(), 0);
        for entry in entries {
            let tag = u32_at(entry, 0);
            if tag <= before {
                return Err("options of the log are out of order");
            }
            before = tag;
            let option = LogOption::from_tag(tag).filter(|_| entry[4..8] == [0; 4]);
            let option = option.ok_or("options of the log are of a newer format, and not supported")?;
            let value = u64_at(entry, 8);
            if !option.bounds().contains(&value) {
                return Err("an option of the log is out of bounds");
            }
            options.set(option, Some(value));
        }
        Ok(options)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn entry(tag: u32, zero: u32, value: u64) -> Vec<u8> {
        [&tag.to_le_bytes()[..], &zero.to_le_bytes(), &value.to_le_bytes()].concat()
    }

    #[test]
    fn decode_reads_what_encode_wrote_and_finds_every_cut() {
        let mut options = LogOptions::default();
        assert!(options.encode().is_empty());
        for option in LogOption::ALL {
            options.set(option, Some(*option.bounds().end()));
            let bytes = options.encode();
            assert_eq!(LogOptions::decode(&bytes), Ok(options));
            for cut in (1..bytes.len()).filter(|n| !n.is_multiple_of(LOG_OPTION_BYTES)) {
                assert_eq!(LogOptions::decode(&bytes[..cut]), Err("options of the log are cut off"));
            }
        }
    }

    #[test]
    fn decode_refuses_malformed_bytes() {
        let newer = "options of the log are of a newer format, and not supported";
        let order = "options of the log are out of order";
        let bounds = "an option of the log is out of bounds";
        for (bytes, why) in [
            (entry(13, 0, 1), newer),
            (entry(11, 0, 2), bounds),
            (entry(u32::MAX, 0, 1), newer),
            (entry(5, 1, 1), newer),
            (entry(0, 0, 1), order),
            ([entry(5, 0, 1), entry(5, 0, 1)].concat(), order),
            ([entry(6, 0, 1), entry(5, 0, 1)].concat(), order),
            (entry(2, 0, 0), bounds),
            (entry(4, 0, u64::MAX), bounds),
            (entry(6, 0, 1025), bounds),
        ] {
            assert_eq!(LogOptions::decode(&bytes), Err(why), "{bytes:?}");
        }
    }

    #[test]
    fn each_option_overrides_the_server_s_own() {
        let own = Options { retention_bytes: Some(1 << 30), sessions_max: 7, ..Options::default() };
        let mut options = LogOptions::default();
        for option in LogOption::ALL {
            let value = match option {
                LogOption::CapacityBytes => 1 << 40,
                LogOption::ObjectBytes => 1 << 20,
                LogOption::PayloadSlices => 1,
                _ => 1000,
            };
            options.set(option, Some(value));
            let is_field = !matches!(
                option,
                LogOption::AppendBytesPerSecond | LogOption::PayloadSlices | LogOption::ObjectRows
            );
            assert_eq!(option.own(&options.over(&own)), is_field.then_some(value), "{option}");
        }
        options.set(LogOption::RetentionBytes, Some(1 << 31));
        let told = options.differences(&own);
        assert_eq!(
            told,
            [
                "retention_bytes is 2147483648 for the log and 1073741824 here",
                "sessions_max is 1000 for the log and 7 here",
            ],
            "options never set here are not reported"
        );
        assert!(options.differences(&options.over(&own)).is_empty());
        let mut options = LogOptions::default();
        options.set(LogOption::RetentionAge, Some(604_800_000));
        let own = Options { retention_age: Some(Duration::from_millis(1500)), ..Options::default() };
        assert_eq!(options.differences(&own), ["retention_age is 604800 s for the log and 1500 ms here"]);
        assert_eq!(options.to_string(), "retention_age 604800 s");
    }

    /// A member's limits on batches are not its segments' limits: records of 100 MiB were refused for segments of any
    /// size.
    #[test]
    fn room_of_a_member_is_the_room_of_its_segments() {
        let leader = Options::with_segment_bytes(1 << 30);
        let check = |option, value, segment_bytes| {
            let mut options = LogOptions::default();
            options.set(LogOption::RetentionBytes, Some(1 << 20)); // not checked
            options.set(option, Some(value));
            options.check_room_of(NodeId(2), segment_bytes, &[option], &leader)
        };
        check(LogOption::RecordBytesMax, 100 << 20, 512 << 20).unwrap();
        check(LogOption::RecordBytesMax, 100 << 20, 64 << 20).unwrap_err();
        check(LogOption::RetentionBytes, 1 << 20, 1 << 30).unwrap();
        check(LogOption::CapacityBytes, 1 << 20, 1 << 30).unwrap();
        check(LogOption::SessionsMax, 4096, 64 << 20).unwrap();
        let refused = check(LogOption::SessionsMax, 4096, 1 << 20).unwrap_err().to_string();
        assert!(refused.contains("node 2") && refused.contains("sessions_max of 4096"), "{refused}");
        // Options that were set earlier and are not changed now are not checked.
        let mut options = LogOptions::default();
        options.set(LogOption::RecordBytesMax, Some(100 << 20));
        options.check_room_of(NodeId(2), 1 << 20, &[LogOption::RetentionAge], &leader).unwrap();
        options.check_room_of(NodeId(2), 1 << 20, &LogOption::ALL, &leader).unwrap_err();
    }

    #[test]
    fn check_names_the_option_that_a_server_cannot_apply() {
        let check = |option, value| {
            let mut options = LogOptions::default();
            options.set(option, Some(value));
            options.check(&Options::with_segment_bytes(1 << 20))
        };
        check(LogOption::RetentionBytes, 2 << 20).unwrap();
        for (option, value) in [
            (LogOption::RetentionBytes, 1 << 20),
            (LogOption::RetentionAge, 0),
            (LogOption::CapacityBytes, 0),
            (LogOption::RecordBytesMax, 1 << 20),
            (LogOption::RecordBytesMax, 0),
            (LogOption::SessionsMax, 1 << 20),
            (LogOption::SessionWindow, 2000),
            (LogOption::SessionIdleMax, 0),
        ] {
            let error = check(option, value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(option.name()), "{error}");
        }
        for (option, value, words) in [
            (LogOption::RetentionAge, 0, "retention_age of the log is 0 s; it has to be at least 1 ms"),
            (LogOption::RetentionBytes, 1, "retention_bytes of the log is 1; it has to be at least 131072"),
            (LogOption::SessionWindow, 0, "session_window of the log is 0; it has to be from 1 to 1024"),
        ] {
            assert!(check(option, value).unwrap_err().to_string().contains(words), "{words}");
        }
        for option in [LogOption::RetentionBytes, LogOption::RetentionAge, LogOption::CapacityBytes] {
            check(option, u64::MAX).unwrap();
        }
    }
}
