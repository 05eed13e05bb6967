//! `chiplog options`: the options that are set in the log itself and hold whichever server leads.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::number::whole_number;
use crate::common::output::Ui;
use crate::connect::cluster::{Asker, Connect};
use crate::connect::open_log;
use crate::connect::remote::Remote;
use crate::connect::target::{Servers, Target};
use chiplog::limits::SEGMENT_BYTES_MIN;
use chiplog::{ErrorKind, Index, LogOption, LogOptions, Start, Timestamp};
use chiplog_net::client::ReaderOptions;
use chiplog_net::wire::proto::v1::{LogOption as WireOption, LogOptionsRequest, SetLogOptionsRequest};
use chiplog_net::wire::status::LOG_ID;
use clap::Args;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tonic::Request;
use tonic::metadata::MetadataValue;

const EXAMPLES: &str = "\
Examples:
  chiplog options log1:7411
      Show what is set for the log. For an option that is not listed the leader's file applies.
  chiplog options log1:7411 --set retention_bytes=500GiB --set retention_seconds=7d
      Keep up to 500 GiB and a week, whichever server leads. Other options stay as they are.
  chiplog options log1:7411 --set retention_bytes=none
      Keep everything, whatever the servers' files say.
  chiplog options log1:7411 --unset retention_bytes
      Let the leader's file apply again.

  chiplog options log1:7411/orders --set retention_seconds=7d --set append_bytes_per_second=10MiB
      Limits of the named log `orders` alone.

Keys:
  retention_bytes, retention_seconds, capacity_bytes, record_bytes_max, sessions_max,
  session_window, session_idle_max_seconds
      Each means the same as log.KEY in a server's file.
  append_bytes_per_second
      How many bytes may be appended to the log in a second, on average. Appends beyond it wait,
      then fail with status 5 (busy); clients retry them.
  object_bytes, object_age_seconds
      Each means the same as objects.KEY in a server's file. A server with an object store sets
      them itself. Once object_bytes is set, the log has objects, and it cannot be unset.
  payload_slices
      1 or 0: whether appends go to the object store, and only references are replicated. It
      cannot be unset.
  object_rows
      For a log with more objects than its state has room for (about 34,000): how many objects, at
      least, that state has rows of, 2 to 65536; 1024 is a good number. It cannot be unset.
  A named log has retention_bytes, retention_seconds, capacity_bytes, record_bytes_max,
  sessions_max, session_idle_max_seconds and append_bytes_per_second of its own; the other keys
  are those of its group, /_group-N. Once a named log keeps capacity_bytes, its appends are
  refused as full. Of two record_bytes_max or sessions_max the lower one applies;
  session_idle_max_seconds of the log replaces that of its group. Its retention goes by whole
  segments of the group: at least retention_bytes of its newest records stay, and the part of a
  segment goes once the segment's last record is older than retention_seconds.";

/// Show or change the options that are set in the log itself.
///
/// They are part of the log, so every replica has the same ones. A server whose file differs warns and obeys
/// the log. The first change makes the log's files unreadable for versions without support for options of a
/// log, and so do the first ones of some options. Such a change is refused (status 7) until all members have
/// said that they support it, and so is one of record_bytes_max, sessions_max or session_window, for which a
/// member's segments may lack room: while a member is down, start it, or remove it from the cluster. Other
/// changes need no more than a majority.
///
/// A `retention_bytes` below what the log holds discards records at once, and so does a `retention_seconds`
/// shorter than the age of the oldest record. On a terminal the command asks first; elsewhere it needs --yes
/// (status 2 without it).
///
/// A directory can be changed only while it is not open for writing elsewhere (status 5).
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Options {
    /// The log's directory, or servers of a cluster: one that runs is enough; A,B,C are tried in turn. With
    /// /LOG after the servers: the options of this named log; also of /_group-N, a whole group of them, and of
    /// /_system, the log of the names.
    #[arg(value_name = "DIR|HOST:PORT[/LOG]", env = "CHIPLOG_SERVERS")]
    target: Target,

    /// Set an option: bytes as a number or like 64MiB, times in seconds or like 90s, 24h, 7d, `none` for no
    /// limit. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(LogOption, u64)>,

    /// Remove an option: then the leader's file applies, or, for a directory, the options of the program that
    /// opens it. Can be repeated.
    #[arg(long, value_name = "KEY", value_parser = key)]
    unset: Vec<LogOption>,

    /// Allow a change of `retention_bytes` or `retention_seconds` that discards records at once, for good.
    #[arg(long)]
    yes: bool,

    /// How long to wait for the members, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = whole_number::<u32>("a number of seconds", 1..=600))]
    timeout: u32,

    #[command(flatten)]
    connect: Connect,
}

/// An option's name in a server's file, and how many of the log's units make one of the file's units.
fn key_of(option: LogOption) -> (&'static str, u64) {
    match option {
        LogOption::RetentionAge => ("retention_seconds", 1000),
        LogOption::SessionIdleMax => ("session_idle_max_seconds", 1000),
        LogOption::ObjectAge => ("object_age_seconds", 1000),
        other => (other.name(), 1),
    }
}

fn key(text: &str) -> Result<LogOption, String> {
    let name = text.strip_prefix("log.").or(text.strip_prefix("objects.")).unwrap_or(text);
    LogOption::ALL.into_iter().find(|option| key_of(*option).0 == name).ok_or_else(|| {
        let keys = LogOption::ALL.map(|option| key_of(option).0).join(", ");
        format!("the log has no option {text}; its options are {keys}")
    })
}

fn setting(text: &str) -> Result<(LogOption, u64), String> {
    let (name, value) = text.split_once('=').ok_or("give KEY=VALUE")?;
    let option = key(name)?;
    let has_none = matches!(
        option,
        LogOption::RetentionBytes
            | LogOption::RetentionAge
            | LogOption::CapacityBytes
            | LogOption::AppendBytesPerSecond
            | LogOption::ObjectAge
    );
    if value == "none" && has_none {
        return Ok((option, u64::MAX));
    }
    let number = match option {
        _ if is_bytes(option) => format::parse_bytes(value)?,
        LogOption::RetentionAge | LogOption::SessionIdleMax | LogOption::ObjectAge => {
            format::parse_seconds(value)?
        }
        _ => value.parse().map_err(|_| format!("{name} has to be a number, not {value}"))?,
    };
    let value = number.checked_mul(key_of(option).1).ok_or_else(|| format!("{name} is too large"))?;
    Ok((option, value))
}

/// Checks that a log can have the options that are to be set for it. The servers check it, too, and know the options by other names.
///
/// # Errors
/// `InvalidArgument`: it is a named log, and an option is of its group alone, or the reverse.
fn check_own(servers: &Servers, changes: &[(LogOption, Option<u64>)]) -> Result<()> {
    const NOT_OF_GROUPS: [LogOption; 3] =
        [LogOption::RetentionBytes, LogOption::RetentionAge, LogOption::AppendBytesPerSecond];
    let is_group = servers.log.starts_with(GROUP);
    if !servers.is_named() || (servers.log.starts_with('_') && !is_group) {
        return Ok(());
    }
    let is_own = |option: &LogOption| match is_group {
        true => !NOT_OF_GROUPS.contains(option),
        false => LogOption::OF_NAMED_LOGS.contains(option),
    };
    let Some((option, _)) = changes.iter().find(|(option, value)| value.is_some() && !is_own(option)) else {
        return Ok(());
    };
    let name = key_of(*option).0;
    let own = LogOption::ALL.into_iter().filter(is_own).map(|option| key_of(option).0);
    let own = own.collect::<Vec<_>>().join(", ");
    let at = servers.addresses.join(",");
    Err(Failure::usage(match is_group {
        true => format!(
            "{name} is not an option of {servers}, a whole group: its options are {own}; set it for each named log, {at}/NAME"
        ),
        false => format!(
            "{name} is not an option of {servers}, one of many named logs: its options are {own}; set it for the log's group, \
             {at}/{GROUP}N with the number that `chiplog logs list {at}` shows"
        ),
    }))
}

/// Begins the name of a group of named logs.
const GROUP: &str = "_group-";

/// A value in the units of a server's file.
fn shown(option: LogOption, value: u64) -> Value {
    let unit = key_of(option).1;
    match value {
        u64::MAX => json!("none"),
        _ if value.is_multiple_of(unit) => json!(value / unit),
        _ => json!(value as f64 / unit as f64),
    }
}

/// Whether it is a number of bytes, alone or in a second.
fn is_bytes(option: LogOption) -> bool {
    use LogOption::{AppendBytesPerSecond, CapacityBytes, ObjectBytes, RecordBytesMax, RetentionBytes};
    matches!(option, RetentionBytes | CapacityBytes | RecordBytesMax | AppendBytesPerSecond | ObjectBytes)
}

fn words(option: LogOption, value: u64) -> String {
    let (key, _) = key_of(option);
    match shown(option, value) {
        Value::String(none) => format!("{key} = {none}"),
        number if is_bytes(option) => format!("{key} = {number}  ({})", format::bytes(value)),
        number => format!("{key} = {number}"),
    }
}

/// Checks the bounds of options before any server is asked.
///
/// # Errors
/// `InvalidArgument`: a limit is below what the smallest segments allow.
fn check_bounds(changes: &[(LogOption, Option<u64>)]) -> Result<()> {
    let bytes_min = 2 * u64::from(SEGMENT_BYTES_MIN);
    for (option, value) in changes {
        let (key, Some(value)) = (key_of(*option).0, *value) else { continue };
        let least = match option {
            LogOption::RetentionBytes | LogOption::CapacityBytes if value < bytes_min => {
                format!("{} ({bytes_min}), two of the smallest segments", format::bytes(bytes_min))
            }
            LogOption::RetentionAge
            | LogOption::SessionIdleMax
            | LogOption::AppendBytesPerSecond
            | LogOption::ObjectAge
                if value == 0 =>
            {
                "1".to_owned()
            }
            _ => continue,
        };
        return Err(Failure::usage(format!("{key} is {value}; it has to be at least {least}")));
    }
    Ok(())
}

/// The contents of a log at present.
struct Held {
    /// It is one of the logs of a group, which has no options in a server's file, and whose bytes are not known.
    is_named: bool,
    bytes: u64,
    records: u64,
    /// When its first and its last record were written, if known.
    times: [Option<Timestamp>; 2],
    now: Timestamp,
}

/// Describes what these changes discard at once. None: nothing, as far as the log's size and times show.
fn loss(changes: &[(LogOption, Option<u64>)], held: &Held) -> Option<String> {
    let value = |wanted| changes.iter().find(|(option, _)| *option == wanted)?.1;
    let by_bytes = value(LogOption::RetentionBytes).and_then(|limit| loss_by_bytes(limit, held));
    let by_age = value(LogOption::RetentionAge).and_then(|limit| loss_by_age(limit, held));
    let is_taken_back = |(option, value): &(LogOption, Option<u64>)| {
        matches!(option, LogOption::RetentionBytes | LogOption::RetentionAge) && value.is_none()
    };
    let can_lose = held.records > 0 && !held.is_named;
    let taken_back = changes.iter().find(|change| can_lose && is_taken_back(change)).map(|(option, _)| {
        let key = key_of(*option).0;
        format!("without {key} in the log the leader's own {key} applies, which can discard records at once, for good")
    });
    let losses: Vec<String> = by_bytes.into_iter().chain(by_age).chain(taken_back).collect();
    (!losses.is_empty()).then(|| losses.join("; "))
}

fn loss_by_bytes(limit: u64, held: &Held) -> Option<String> {
    let records = format::many(held.records, "record", "records");
    if held.is_named {
        return (held.records > 0 && limit < u64::MAX).then(|| {
            format!(
                "the log holds {records}: with retention_bytes of {} those in older segments than its newest {} are discarded, for good",
                format::bytes(limit),
                format::bytes(limit)
            )
        });
    }
    let beyond = held.bytes.checked_sub(limit).filter(|beyond| *beyond > 0)?;
    let part = u128::from(held.records) * u128::from(beyond) / u128::from(held.bytes);
    Some(format!(
        "the log holds {records} ({}): with retention_bytes of {} about {} of the oldest ({}) are discarded at once, for good",
        format::bytes(held.bytes),
        format::bytes(limit),
        format::count(u64::try_from(part).unwrap_or(u64::MAX)),
        format::bytes(beyond),
    ))
}

/// `limit`: in milliseconds. It is not known how many records are older: only the first and the last one are
/// read.
fn loss_by_age(limit: u64, held: &Held) -> Option<String> {
    if limit == u64::MAX || held.records == 0 {
        return None;
    }
    let is_older = |time: Timestamp| time.get().saturating_add(limit) < held.now.get();
    let [first, last] = held.times;
    if first.is_some_and(|time| !is_older(time)) {
        return None;
    }
    let first = first.map_or("of an unknown time".to_owned(), |time| format!("of {}", format::time(time)));
    let last = match last.filter(|time| is_older(*time)) {
        Some(time) => format!(" and the newest of {}", format::time(time)),
        None => String::new(),
    };
    Some(format!(
        "the log holds {}, the oldest {first}{last}: with retention_seconds of {} older records are discarded at once, for good, segment by segment",
        format::many(held.records, "record", "records"),
        format::span(limit / 1000),
    ))
}

/// Shows what would be discarded and asks for consent. Returns the text to print afterwards if --yes replaced
/// the question.
///
/// # Errors
/// `InvalidArgument`: records would be discarded, and the user did not consent.
fn check_loss(
    args: &Options,
    changes: &[(LogOption, Option<u64>)],
    held: &Held,
    ui: &Ui,
) -> Result<Option<String>> {
    let Some(loss) = loss(changes, held) else { return Ok(None) };
    if args.yes {
        return Ok(Some(loss));
    }
    match ui.agrees(&loss) {
        true => Ok(None),
        false => Err(Failure::usage(format!("{loss}; nothing was changed: pass --yes to allow it"))),
    }
}

/// The failure of a change that --yes allowed to discard records.
fn refused(failure: Failure, args: &Options) -> Failure {
    match failure.kind() {
        ErrorKind::InvalidArgument | ErrorKind::Unsupported if args.yes => {
            failure.with_words("no option was set, and nothing was discarded")
        }
        _ => failure,
    }
}

/// Whether a change can discard records. Removing a limit can as well, because then the leader's own applies.
fn shortens(changes: &[(LogOption, Option<u64>)]) -> bool {
    changes.iter().any(|(option, _)| matches!(option, LogOption::RetentionBytes | LogOption::RetentionAge))
}

fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

fn local(args: &Options, dir: &Path, changes: &[(LogOption, Option<u64>)], ui: &Ui) -> Result<LogOptions> {
    if changes.is_empty() {
        return Ok(open_log::view(dir)?.log_options());
    }
    let limits_sessions =
        |(option, _): &(LogOption, _)| matches!(option, LogOption::SessionsMax | LogOption::SessionWindow);
    let log = match changes.iter().any(limits_sessions) {
        true => open_log::open_for_sessions(dir)?,
        false => open_log::open_as_it_is(dir, None)?,
    };
    let status = log.status();
    let records = status.last_index.next().get().saturating_sub(status.first_index.get());
    let times = [status.first_index, status.last_index]
        .map(|index| log.read(index).ok().map(|record| record.timestamp));
    let held = Held { is_named: false, bytes: status.bytes_used, records, times, now: now() };
    let loss = check_loss(args, changes, &held, ui)?;
    let timeout = Duration::from_secs(args.timeout.into());
    log.set_log_options(changes, timeout).map_err(|e| refused(e.into(), args))?;
    if let Some(loss) = loss {
        ui.say(&loss);
    }
    let options = log.log_options();
    log.close()?;
    Ok(options)
}

/// When records were written; None where a record cannot be read.
fn times<const N: usize>(
    args: &Options,
    servers: &Servers,
    records: [u64; N],
    ui: &Ui,
) -> Result<[Option<Timestamp>; N]> {
    let remote = Remote::connect(servers, &args.connect, ui)?;
    Ok(records.map(|index| {
        let mut options = ReaderOptions::default();
        (options.follow, options.min_index) = (false, Index(index));
        let mut reader = remote.client.reader_with(Start::Index(Index(index)), options);
        remote.wait(reader.next_batch()).ok().flatten().map(|batch| batch.timestamp())
    }))
}

fn remote(
    args: &Options,
    servers: &Servers,
    changes: &[(LogOption, Option<u64>)],
    ui: &Ui,
) -> Result<LogOptions> {
    let asker = Asker::new(&args.connect, ui)?;
    let mut loss = None;
    // The log whose loss is shown: by the time of the answer another one can have its name.
    let mut meant = None;
    if shortens(changes) {
        let (_, leader) = asker.leader(servers)?;
        meant = MetadataValue::try_from(&leader.log_id).ok();
        let records = (leader.last + 1).saturating_sub(leader.first);
        let is_group = servers.log.starts_with('_');
        let is_named = servers.is_named() && !is_group;
        let mut held = Held { is_named, bytes: leader.bytes_used, records, times: [None; 2], now: now() };
        // The records of a group are those of several logs, and are not read.
        if records > 0 && !is_group && changes.iter().any(|(option, _)| *option == LogOption::RetentionAge) {
            held.times = times(args, servers, [leader.first, leader.last], ui)?;
        }
        loss = check_loss(args, changes, &held, ui)?;
    }
    let patience = Duration::from_secs(u64::from(args.timeout) + 5);
    let wire: Vec<WireOption> = changes
        .iter()
        .map(|(option, value)| WireOption { name: option.name().to_owned(), value: *value })
        .collect();
    let timeout_millis = args.timeout * 1000;
    let current = asker.ask_leader(servers, patience, |mut admin| {
        let (log, changes, meant) = (servers.log.clone(), wire.clone(), meant.clone());
        async move {
            if changes.is_empty() {
                let current = admin.log_options(LogOptionsRequest { log }).await?;
                return Ok(current.into_inner().options);
            }
            let mut request = Request::new(SetLogOptionsRequest { log, changes, timeout_millis });
            if let Some(meant) = meant {
                request.metadata_mut().insert(LOG_ID, meant);
            }
            Ok(admin.set_log_options(request).await?.into_inner().options)
        }
    });
    let current = current.map_err(|failure| refused(failure, args))?;
    if let Some(loss) = loss {
        ui.say(&loss);
    }
    let mut options = LogOptions::default();
    for WireOption { name, value } in current {
        let option = LogOption::from_name(&name).ok_or_else(|| {
            Failure::new(
                ErrorKind::Unsupported,
                format!(
                    "the log has the option {name}, which this version does not know: use a newer chiplog"
                ),
            )
        })?;
        options.set(option, value);
    }
    Ok(options)
}

pub(crate) fn run(args: &Options, ui: &Ui) -> Result<Exit> {
    let set = args.set.iter().map(|(option, value)| (*option, Some(*value)));
    let changes: Vec<_> = set.chain(args.unset.iter().map(|option| (*option, None))).collect();
    for (n, (option, _)) in changes.iter().enumerate() {
        if changes[..n].iter().any(|(other, _)| other == option) {
            return Err(Failure::usage(format!("{} is given twice", key_of(*option).0)));
        }
    }
    check_bounds(&changes)?;
    if let Target::Servers(servers) = &args.target {
        check_own(servers, &changes)?;
    }
    let options = match &args.target {
        Target::Directory(dir) => local(args, dir, &changes, ui)?,
        Target::Servers(servers) => remote(args, servers, &changes, ui)?,
    };
    let values: Map<String, Value> =
        options.iter().map(|(option, value)| (key_of(option).0.to_owned(), shown(option, value))).collect();
    ui.result(&json!({ "options": values }), |_| {
        if options.is_empty() {
            return match &args.target {
                Target::Servers(servers) if servers.is_named() && !servers.log.starts_with('_') => {
                    "no option is set for the log: it keeps everything, at any rate"
                }
                Target::Servers(_) => "no option is set for the log: the leader's file applies",
                Target::Directory(_) => {
                    "no option is set for the log: the options of the program that opens it apply"
                }
            }
            .to_owned();
        }
        options.iter().map(|(option, value)| words(option, value)).collect::<Vec<_>>().join("\n")
    })?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_limit_warns_about_discarded_records() {
        let held =
            Held { is_named: false, bytes: 10 << 20, records: 700, times: [None; 2], now: Timestamp(0) };
        let of = |value| loss(&[(LogOption::RetentionBytes, value)], &held);
        let text = of(Some(8 << 20)).unwrap();
        for word in ["700 records", "10.0 MiB", "about 140 of the oldest (2.0 MiB)"] {
            assert!(text.contains(word), "{text}");
        }
        for harmless in [Some(10 << 20), Some(u64::MAX)] {
            assert_eq!(of(harmless), None);
        }
        assert!(of(None).unwrap().contains("the leader's own retention_bytes applies"));
        let empty = Held { bytes: 0, records: 0, ..held };
        assert_eq!(loss(&[(LogOption::RetentionBytes, None)], &empty), None);
        let held = Held { bytes: 10 << 20, records: 700, ..empty };
        assert_eq!(loss(&[(LogOption::CapacityBytes, Some(1))], &held), None);
        let named = Held { is_named: true, ..held };
        let of = |value| loss(&[(LogOption::RetentionBytes, value)], &named);
        assert!(of(Some(1 << 30)).unwrap().contains("older segments than its newest 1.0 GiB"));
        assert_eq!((of(None), of(Some(u64::MAX))), (None, None));
    }

    /// A limit on age was set without a question: 38 MiB of a log were gone within two seconds.
    #[test]
    fn age_limit_warns_about_discarded_records() {
        let day = |n: u64| Timestamp(n * 86_400_000);
        let held = |times| Held { is_named: false, bytes: 10 << 20, records: 700, times, now: day(30) };
        let of = |seconds: u64, held| loss(&[(LogOption::RetentionAge, Some(seconds * 1000))], &held);
        let times = [Some(day(10)), Some(day(29))];
        let text = of(7 * 86_400, held(times)).unwrap();
        for words in ["700 records", "the oldest of 1970-01-11T00:00:00.000Z:", "7 days", "at once, for good"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        let text = of(1, held(times)).unwrap();
        assert!(text.contains("and the newest of 1970-01-30"), "{text}");
        let text = of(1, held([None; 2])).unwrap();
        assert!(text.contains("of an unknown time"), "{text}");
        assert_eq!(of(20 * 86_400, held(times)), None);
        assert_eq!(loss(&[(LogOption::RetentionAge, Some(u64::MAX))], &held(times)), None);
        assert_eq!(of(1, Held { records: 0, ..held([None; 2]) }), None);
        let both = [(LogOption::RetentionAge, Some(1000)), (LogOption::RetentionBytes, Some(8 << 20))];
        let text = loss(&both, &held(times)).unwrap();
        assert!(text.contains("retention_bytes of") && text.contains("retention_seconds of"), "{text}");
    }

    #[test]
    fn limits_below_the_minimum_are_refused_locally() {
        for (option, value, text) in [
            (LogOption::RetentionBytes, 1, "retention_bytes is 1; it has to be at least 128.0 KiB (131072)"),
            (LogOption::RetentionAge, 0, "retention_seconds is 0; it has to be at least 1"),
            (LogOption::AppendBytesPerSecond, 0, "append_bytes_per_second is 0; it has to be at least 1"),
        ] {
            let failure = check_bounds(&[(option, Some(value))]).unwrap_err();
            assert!(failure.to_string().starts_with(text), "{failure}");
            check_bounds(&[(option, Some(u64::MAX)), (option, None)]).unwrap();
        }
    }

    #[test]
    fn settings_use_the_names_and_units_of_a_server_file() {
        for (text, option, value) in [
            ("retention_bytes=64MiB", LogOption::RetentionBytes, 64 << 20),
            ("log.retention_seconds=604800", LogOption::RetentionAge, 604_800_000),
            ("retention_bytes=none", LogOption::RetentionBytes, u64::MAX),
            ("session_window=7", LogOption::SessionWindow, 7),
            ("retention_seconds=7d", LogOption::RetentionAge, 604_800_000),
            ("session_idle_max_seconds=24h", LogOption::SessionIdleMax, 86_400_000),
            ("append_bytes_per_second=10MiB", LogOption::AppendBytesPerSecond, 10 << 20),
            ("append_bytes_per_second=none", LogOption::AppendBytesPerSecond, u64::MAX),
            ("capacity_bytes=10GiB", LogOption::CapacityBytes, 10 << 30),
            ("session_idle_max_seconds=1", LogOption::SessionIdleMax, 1000),
        ] {
            assert_eq!(setting(text), Ok((option, value)), "{text}");
        }
        for wrong in [
            "retention_bytes",
            "retention=1",
            "retention_age=1",
            "sessions_max=none",
            "session_window=x",
            "retention_seconds=18446744073709551615",
        ] {
            assert!(setting(wrong).is_err(), "{wrong}");
        }
        assert_eq!(words(LogOption::RetentionAge, 1500), "retention_seconds = 1.5");
        assert_eq!(words(LogOption::CapacityBytes, u64::MAX), "capacity_bytes = none");
        assert_eq!(words(LogOption::RetentionBytes, 1 << 30), "retention_bytes = 1073741824  (1.0 GiB)");
    }
}
