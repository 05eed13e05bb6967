//! Opens logs for commands: the only place that converts command-line options to the library's.

use crate::common::failure::{Failure, LOCKED_ADVICE, Result};
use crate::common::format::{parse_bytes, parse_time};
use crate::common::locks;
use crate::common::locks::Holder;
use crate::connect::directory::{check_no_backup, enclosing, is_log, named_log_advice};
use chiplog::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use chiplog::{Codec, ErrorKind, Log, LogOption, Options, ReadOnlyLog, Timestamp};
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

/// The most batches of a session that a log can remember.
const REMEMBERED_MAX: u16 = 1024;

/// Opens a log for writing. If another process has it open, the failure names that process if possible. A backup is
/// refused.
pub(crate) fn open(dir: &Path, options: Options) -> Result<Log> {
    let options = remembering(dir, options);
    open_with(dir, options)
}

/// The same options, for a log that remembers of its sessions all that it remembers now: the program to which it belongs can have larger
/// limits, and a command opens no sessions.
fn remembering(dir: &Path, options: Options) -> Options {
    let Ok(log) = ReadOnlyLog::open(dir) else { return options };
    let set = log.log_options().get(LogOption::SessionsMax).and_then(|max| u32::try_from(max).ok());
    let with = |max: u32, window: u16| options.clone().sessions_max(max).session_window(window);
    // The remembered batches have to fit into the openings of the next files beside what is set for the log. The number of sessions limits
    // only new ones.
    let fits = |window: &u16| with(set.unwrap_or(1), *window).check().is_ok();
    let window = (options.session_window..=REMEMBERED_MAX).rev().find(fits);
    window.map_or_else(|| options.clone(), |window| with(1, window))
}

/// As [`open`], with exactly these options.
pub(crate) fn open_with(dir: &Path, options: Options) -> Result<Log> {
    check_no_backup(dir)?;
    let known = is_log(dir);
    Log::open(dir, options).map_err(|error| match error.kind() {
        // A log that does not exist has nothing to discard.
        ErrorKind::Full if !known => Failure::new(ErrorKind::Full, error.to_string()),
        ErrorKind::Full => {
            let advice = "`chiplog discard --segment-bytes SIZE` makes room if the disk has SIZE free";
            Failure::new(ErrorKind::Full, format!("{error}; {advice}"))
        }
        _ => missing(dir, &error).unwrap_or_else(|| refused(dir, error)),
    })
}

/// Opens a log read-only.
pub(crate) fn view(dir: &Path) -> Result<ReadOnlyLog> {
    ReadOnlyLog::open(dir).map_err(|error| unreadable(dir, error))
}

/// Explains why the files of a log could not be read.
pub(crate) fn unreadable(dir: &Path, error: chiplog::Error) -> Failure {
    missing(dir, &error).unwrap_or_else(|| error.into())
}

/// If there is no log: says so, and what to do.
fn missing(dir: &Path, error: &chiplog::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::NotFound {
        return None;
    }
    let advice = match enclosing(dir) {
        Some(above) => {
            format!("it is within {}, another log's directory; {}", above.display(), named_log_advice(dir))
        }
        None => "give a log's directory or a server's HOST:PORT, or make a log there with `chiplog append`"
            .to_owned(),
    };
    Some(Failure::new(ErrorKind::NotFound, format!("{error}; {advice}")))
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
    open(dir, options_of(dir, segment_bytes))
}

/// As [`open_as_it_is`], to set limits of sessions: they are checked against the defaults for this segment size, as those of the program
/// to which the log belongs are not known.
pub(crate) fn open_for_sessions(dir: &Path) -> Result<Log> {
    open_with(dir, options_of(dir, None))
}

fn options_of(dir: &Path, segment_bytes: Option<u32>) -> Options {
    let segment_bytes = segment_bytes.or_else(|| segment_bytes_of(dir));
    segment_bytes.map_or_else(Options::default, Options::with_segment_bytes).create(false)
}

/// The size of a log's largest segment file: a command can have made smaller ones on a full disk. None: no file can be a segment.
fn segment_bytes_of(dir: &Path) -> Option<u32> {
    let files = std::fs::read_dir(dir).ok()?.flatten();
    let is_segment = |name: &str| name.strip_suffix(".seg").is_some_and(|n| n.parse::<u64>().is_ok());
    let segments = files.filter_map(|file| {
        file.file_name().into_string().ok().filter(|name| is_segment(name))?;
        let bytes = u32::try_from(file.metadata().ok()?.len()).ok()?;
        (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes).then_some(bytes)
    });
    segments.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `chiplog discard` of a log with small files remembered 16 batches of each session, of 128.
    #[test]
    fn command_makes_the_log_forget_no_batches_of_a_session() {
        let dir = tempfile::tempdir().unwrap();
        let own = Options::with_segment_bytes(256 << 10).sessions_max(8).session_window(128);
        assert_eq!(Options::with_segment_bytes(256 << 10).session_window, 16);
        let log = Log::open(dir.path(), own.clone()).unwrap();
        let mut session = log.open_session().unwrap();
        let id = session.id();
        let tickets: Vec<_> = (0..100).map(|_| session.submit(b"x").unwrap()).collect();
        let all: Vec<_> = tickets.into_iter().map(|ticket| ticket.wait().unwrap()).collect();
        log.close().unwrap();
        let log = open_as_it_is(dir.path(), None).unwrap();
        assert!(log.session_window() >= 128, "{}", log.session_window());
        // The next file begins with what is remembered.
        for _ in 0..4 {
            log.append(&vec![0; 100_000]).unwrap();
        }
        log.discard(chiplog::Index(101)).unwrap();
        log.close().unwrap();
        let log = Log::open(dir.path(), own).unwrap();
        let again = log.resume_session(id, chiplog::Sequence(2)).append(b"x").unwrap();
        assert_eq!(again, all[1]);
        log.close().unwrap();
    }

    /// New files got the size of one that `discard --segment-bytes` had made on a full disk.
    #[test]
    fn size_of_new_files_is_that_of_the_largest() {
        let dir = tempfile::tempdir().unwrap();
        Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap().close().unwrap();
        let small = open_as_it_is(dir.path(), Some(SEGMENT_BYTES_MIN)).unwrap();
        for _ in 0..40 {
            small.append(&vec![0; 40_000]).unwrap();
        }
        small.close().unwrap();
        assert_eq!(segment_bytes_of(dir.path()), Some(1 << 20));
        let log = open_as_it_is(dir.path(), None).unwrap();
        assert_eq!(log.options().segment_bytes, 1 << 20);
        log.close().unwrap();
    }
}
