//! Opens logs for commands: the only place that converts command-line options to the library's.

use crate::common::failure::{Failure, LOCKED_ADVICE, Result};
use crate::common::format::{parse_bytes, parse_time};
use crate::common::locks;
use crate::common::locks::Holder;
use crate::connect::directory::{check_no_backup, is_log};
use chiplog::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use chiplog::{Codec, ErrorKind, Log, Options, ReadOnlyLog, Timestamp};
use clap::{Args, ValueEnum};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The codecs by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CodecName {
    /// No compression; readers get the bytes without a copy.
    None,
    /// Fast.
    Lz4,
    /// Small.
    Zstd,
}

impl From<CodecName> for Codec {
    fn from(name: CodecName) -> Self {
        match name {
            CodecName::None => Self::None,
            CodecName::Lz4 => Self::Lz4,
            CodecName::Zstd => Self::Zstd,
        }
    }
}

/// The name of a codec in output.
pub(crate) fn codec_name(codec: Codec) -> &'static str {
    match codec {
        Codec::None => "none",
        Codec::Lz4 => "lz4",
        Codec::Zstd => "zstd",
        Codec::Reference => "reference",
        _ => "unknown",
    }
}

/// Options of a log that is opened for writing.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Log options")]
pub(crate) struct WriteOptions {
    /// Size of new segment files, such as 64MiB; between 64KiB and 1GiB. Existing files keep their size.
    #[arg(long, value_name = "SIZE", value_parser = segment_bytes)]
    segment_bytes: Option<u32>,

    /// Refuse appends (status 5) once the log holds this many bytes; at least two segments. Without it, the
    /// disk is the limit.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    capacity: Option<u64>,

    /// Make a new log if there is none, even in a directory given without a slash.
    #[arg(long, conflicts_with = "no_create")]
    create: bool,

    /// Fail (status 4) if there is no log, instead of making one.
    #[arg(long)]
    no_create: bool,
}

/// Parses a point in time. Spans are relative to now.
pub(crate) fn since(text: &str) -> Result<Timestamp, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    parse_time(text, Timestamp(u64::try_from(now.as_millis()).unwrap_or(u64::MAX)))
}

/// Parses the size of a segment.
pub(crate) fn segment_bytes(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text)?;
    u32::try_from(bytes).map_err(|_| format!("a segment has up to {SEGMENT_BYTES_MAX} bytes"))
}

impl WriteOptions {
    /// The name of an option that was given and is for directories only.
    pub(crate) fn given(&self) -> Option<&'static str> {
        [
            (self.segment_bytes.is_some(), "--segment-bytes"),
            (self.capacity.is_some(), "--capacity"),
            (self.create, "--create"),
            (self.no_create, "--no-create"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }

    /// Whether --create allows a new log in any directory.
    pub(crate) fn creates(&self) -> bool {
        self.create
    }

    /// The options in the library's form.
    pub(crate) fn options(&self) -> Options {
        let base = self.segment_bytes.map_or_else(Options::default, Options::with_segment_bytes);
        base.create(!self.no_create).capacity_bytes(self.capacity)
    }
}

/// Opens a log for writing. If another process has it open, the failure names that process if possible. A backup is
/// refused.
pub(crate) fn open(dir: &Path, options: Options) -> Result<Log> {
    check_no_backup(dir)?;
    let known = is_log(dir);
    Log::open(dir, options).map_err(|error| match error.kind() {
        // A log that does not exist has nothing to discard.
        ErrorKind::Full if !known => Failure::new(ErrorKind::Full, error.to_string()),
        ErrorKind::Full => {
            let advice = "`chiplog discard --segment-bytes SIZE` makes room if the disk has SIZE free";
            Failure::new(ErrorKind::Full, format!("{error}; {advice}"))
        }
        _ => missing(&error).unwrap_or_else(|| refused(dir, error)),
    })
}

/// Opens a log read-only.
pub(crate) fn view(dir: &Path) -> Result<ReadOnlyLog> {
    ReadOnlyLog::open(dir).map_err(unreadable)
}

/// Explains why the files of a log could not be read.
pub(crate) fn unreadable(error: chiplog::Error) -> Failure {
    missing(&error).unwrap_or_else(|| error.into())
}

/// If there is no log: says so, and what to do.
fn missing(error: &chiplog::Error) -> Option<Failure> {
    let advice = "give a log's directory or a server's HOST:PORT, or make a log there with `chiplog append`";
    (error.kind() == ErrorKind::NotFound)
        .then(|| Failure::new(ErrorKind::NotFound, format!("{error}; {advice}")))
}

/// Explains why a log could not be opened.
pub(crate) fn refused(dir: &Path, error: chiplog::Error) -> Failure {
    match locks::holder(dir) {
        Some(holder) if error.kind() == ErrorKind::Locked => locked(dir, &holder),
        _ => error.into(),
    }
}

fn locked(dir: &Path, holder: &Holder) -> Failure {
    let who = match (&holder.command, holder.pid) {
        (_, 0) => "a process of another container".to_owned(),
        (Some(command), pid) => format!("process {pid} ({command})"),
        (None, pid) => format!("process {pid}"),
    };
    let message = format!("{} is already open for writing, by {who}{LOCKED_ADVICE}", dir.display());
    let mut failure = Failure::new(ErrorKind::Locked, message);
    failure.detail("writer", serde_json::to_value(holder).unwrap_or_default());
    failure
}

/// Opens an existing log for writing, with its own segment size unless one is given: limits are checked against the size
/// it was made with, and new files get the same size.
pub(crate) fn open_as_it_is(dir: &Path, segment_bytes: Option<u32>) -> Result<Log> {
    let options = segment_bytes
        .or_else(|| segment_bytes_of(dir))
        .map_or_else(Options::default, Options::with_segment_bytes);
    open(dir, options.create(false))
}

/// The size of a log's newest segment file. None: no file can be a segment.
fn segment_bytes_of(dir: &Path) -> Option<u32> {
    let files = std::fs::read_dir(dir).ok()?.flatten();
    let is_segment = |name: &str| name.strip_suffix(".seg").is_some_and(|n| n.parse::<u64>().is_ok());
    let segments = files.filter_map(|file| {
        let name = file.file_name().into_string().ok().filter(|name| is_segment(name))?;
        let bytes = u32::try_from(file.metadata().ok()?.len()).ok()?;
        (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes).then_some((name, bytes))
    });
    segments.max().map(|(_, bytes)| bytes)
}
