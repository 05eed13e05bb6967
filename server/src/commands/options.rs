//! `chiplog options`: what is set for the log, whichever server leads.

use crate::cluster::{Asker, Connect};
use crate::engine;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::human;
use crate::target::Target;
use crate::ui::Ui;
use chiplog::{LogOption, LogOptions};
use chiplog_net::wire::proto::v1::{LogOption as WireOption, LogOptionsRequest, SetLogOptionsRequest};
use clap::Args;
use serde_json::{Map, Value, json};
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  chiplog options log1:7411
      What is set for the log. For what is not listed the leader's file applies.
  chiplog options log1:7411 --set retention_bytes=500GiB --set retention_seconds=604800
      Keeps 500 GiB at most and a week, whichever server leads. Others stay as they are.
  chiplog options log1:7411 --set retention_bytes=none
      Keeps all, whatever the files of servers say.
  chiplog options log1:7411 --unset retention_bytes
      The leader's file applies again.

Keys: retention_bytes, retention_seconds, capacity_bytes, record_bytes_max, sessions_max, session_window,
session_idle_max_seconds. They mean what log.KEY means in a server's file.";

/// Show, or change, the options that hold for the log itself.
///
/// They stand in the log: every replica has the same ones, and a server whose file says something else warns and obeys the
/// log. A change is refused (status 7) as long as a member runs a version that knows no options of a log. The first one makes
/// the log's files unreadable for such versions.
///
/// A `retention_bytes` below what the log holds discards records at once. How many is said, and it is asked on a terminal; elsewhere
/// --yes is needed (status 2). What `retention_seconds` discards is not known beforehand, and not asked.
///
/// With a directory: it must not be open for writing elsewhere to be changed (status 5).
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Options {
    /// The log's directory, or servers of a cluster: one that runs is enough, A,B,C are tried in turn.
    #[arg(value_name = "DIR|HOST:PORT", env = "CHIPLOG_SERVERS")]
    target: Target,

    /// Set an option. Bytes as a number or like 64MiB; none: no limit. Any number of times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(LogOption, u64)>,

    /// Take an option back: then the leader's file applies, or, with a directory, what the program says that opens it. Any number of times.
    #[arg(long, value_name = "KEY", value_parser = key)]
    unset: Vec<LogOption>,

    /// Set a `retention_bytes` below what the log holds: what is beyond it is discarded at once, for good.
    #[arg(long)]
    yes: bool,

    /// How long to wait for the members, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    timeout: u32,

    #[command(flatten)]
    connect: Connect,
}

/// What an option is called in a server's file, and how many of the log's units one of its own is.
fn key_of(option: LogOption) -> (&'static str, u64) {
    match option {
        LogOption::RetentionAge => ("retention_seconds", 1000),
        LogOption::SessionIdleMax => ("session_idle_max_seconds", 1000),
        other => (other.name(), 1),
    }
}

fn key(text: &str) -> Result<LogOption, String> {
    let name = text.strip_prefix("log.").unwrap_or(text);
    LogOption::ALL.into_iter().find(|option| key_of(*option).0 == name).ok_or_else(|| {
        let keys = LogOption::ALL.map(|option| key_of(option).0).join(", ");
        format!("the log has no option {text}; it has {keys}")
    })
}

fn setting(text: &str) -> Result<(LogOption, u64), String> {
    let (name, value) = text.split_once('=').ok_or("give KEY=VALUE")?;
    let option = key(name)?;
    let has_none =
        matches!(option, LogOption::RetentionBytes | LogOption::RetentionAge | LogOption::CapacityBytes);
    if value == "none" && has_none {
        return Ok((option, u64::MAX));
    }
    let is_bytes =
        matches!(option, LogOption::RetentionBytes | LogOption::CapacityBytes | LogOption::RecordBytesMax);
    let number = if is_bytes {
        human::parse_bytes(value)?
    } else {
        value.parse().map_err(|_| format!("{name} is a number, not {value}"))?
    };
    let value = number.checked_mul(key_of(option).1).ok_or_else(|| format!("{name} is too large"))?;
    Ok((option, value))
}

/// A value as a server's file has it.
fn shown(option: LogOption, value: u64) -> Value {
    let unit = key_of(option).1;
    match value {
        u64::MAX => json!("none"),
        _ if value.is_multiple_of(unit) => json!(value / unit),
        _ => json!(value as f64 / unit as f64),
    }
}

fn words(option: LogOption, value: u64) -> String {
    let (key, _) = key_of(option);
    let is_bytes =
        matches!(option, LogOption::RetentionBytes | LogOption::CapacityBytes | LogOption::RecordBytesMax);
    match shown(option, value) {
        Value::String(none) => format!("{key} = {none}"),
        number if is_bytes => format!("{key} = {number}  ({})", human::bytes(value)),
        number => format!("{key} = {number}"),
    }
}

/// What a log holds.
struct Held {
    bytes: u64,
    records: u64,
}

/// What these changes discard at once, in words. None: nothing, as far as the log's size tells.
fn loss(changes: &[(LogOption, Option<u64>)], held: &Held) -> Option<String> {
    let limit = changes.iter().find(|(option, _)| *option == LogOption::RetentionBytes)?.1?;
    let beyond = held.bytes.checked_sub(limit).filter(|beyond| *beyond > 0)?;
    let part = u128::from(held.records) * u128::from(beyond) / u128::from(held.bytes);
    let records = human::many(held.records, "record", "records");
    Some(format!(
        "the log holds {records} ({}): with retention_bytes of {} about {} of the oldest ({}) are discarded at once, for good",
        human::bytes(held.bytes),
        human::bytes(limit),
        human::count(u64::try_from(part).unwrap_or(u64::MAX)),
        human::bytes(beyond),
    ))
}

/// # Errors
/// `InvalidArgument`: records would be discarded, and nobody said that they may.
fn check_loss(args: &Options, changes: &[(LogOption, Option<u64>)], held: &Held, ui: &Ui) -> Result<()> {
    let Some(loss) = loss(changes, held) else { return Ok(()) };
    if args.yes {
        ui.say(&loss);
        return Ok(());
    }
    let (mut asks, mut answer) = (std::io::stderr(), String::new());
    if !ui.json && std::io::stdin().is_terminal() && asks.is_terminal() {
        let _ = write!(asks, "chiplog: {loss}. Go on? [y/N] ");
        let _ = std::io::stdin().read_line(&mut answer);
    }
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::usage(format!("{loss}; nothing was changed: say --yes if they may be"))),
    }
}

fn local(args: &Options, dir: &Path, changes: &[(LogOption, Option<u64>)], ui: &Ui) -> Result<LogOptions> {
    if changes.is_empty() {
        return Ok(engine::view(dir)?.log_options());
    }
    let log = engine::open_as_it_is(dir)?;
    let info = log.info();
    let records = info.last.next().get().saturating_sub(info.first.get());
    check_loss(args, changes, &Held { bytes: info.bytes_used, records }, ui)?;
    log.set_log_options(changes, Duration::from_secs(args.timeout.into()))?;
    let options = log.log_options();
    log.close()?;
    Ok(options)
}

fn remote(
    args: &Options,
    servers: &[String],
    changes: &[(LogOption, Option<u64>)],
    ui: &Ui,
) -> Result<LogOptions> {
    let asker = Asker::new(&args.connect, ui)?;
    if changes.iter().any(|(option, value)| *option == LogOption::RetentionBytes && value.is_some()) {
        let (_, leader) = asker.leader(servers)?;
        let records = (leader.last + 1).saturating_sub(leader.first);
        check_loss(args, changes, &Held { bytes: leader.bytes_used, records }, ui)?;
    }
    let patience = Duration::from_secs(u64::from(args.timeout) + 5);
    let wire: Vec<WireOption> = changes
        .iter()
        .map(|(option, value)| WireOption { name: option.name().to_owned(), value: *value })
        .collect();
    let timeout_millis = args.timeout * 1000;
    let told = asker.ask_leader(servers, patience, |mut admin| {
        let changes = wire.clone();
        async move {
            if changes.is_empty() {
                let told = admin.log_options(LogOptionsRequest::default()).await?;
                return Ok(told.into_inner().options);
            }
            let request = SetLogOptionsRequest { changes, timeout_millis, ..Default::default() };
            Ok(admin.set_log_options(request).await?.into_inner().options)
        }
    })?;
    let mut options = LogOptions::default();
    for WireOption { name, value } in told {
        let option = LogOption::from_name(&name).ok_or_else(|| {
            Failure::new(
                chiplog::ErrorKind::Unsupported,
                format!("the log has option {name}, which this version does not know: use a newer chiplog"),
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
    let options = match &args.target {
        Target::Directory(dir) => local(args, dir, &changes, ui)?,
        Target::Servers(servers) => remote(args, servers, &changes, ui)?,
    };
    let values: Map<String, Value> =
        options.iter().map(|(option, value)| (key_of(option).0.to_owned(), shown(option, value))).collect();
    ui.result(&json!({ "options": values }), |_| {
        if options.is_empty() {
            return match args.target {
                Target::Servers(_) => "no option is set for the log: the leader's file applies",
                Target::Directory(_) => {
                    "no option is set for the log: what the program says that opens it applies"
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
    fn what_a_limit_discards_is_told() {
        let held = Held { bytes: 10 << 20, records: 700 };
        let of = |value| loss(&[(LogOption::RetentionBytes, value)], &held);
        let told = of(Some(8 << 20)).unwrap();
        for word in ["700 records", "10.0 MiB", "about 140 of the oldest (2.0 MiB)"] {
            assert!(told.contains(word), "{told}");
        }
        for harmless in [None, Some(10 << 20), Some(u64::MAX)] {
            assert_eq!(of(harmless), None);
        }
        assert_eq!(loss(&[(LogOption::CapacityBytes, Some(1))], &held), None);
    }

    #[test]
    fn settings_are_as_in_a_server_s_file() {
        for (text, option, value) in [
            ("retention_bytes=64MiB", LogOption::RetentionBytes, 64 << 20),
            ("log.retention_seconds=604800", LogOption::RetentionAge, 604_800_000),
            ("retention_bytes=none", LogOption::RetentionBytes, u64::MAX),
            ("session_window=7", LogOption::SessionWindow, 7),
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
