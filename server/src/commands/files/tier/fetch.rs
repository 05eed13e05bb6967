//! `chiplog tier fetch`: a backup of the objects of a log, or of all logs of a cluster.

use super::named;
use super::objects::{Chosen, only_log};
use crate::commands::files::backup::{BackupSummary, records};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use chiplog::backup::{Backup, BackupInfo, ClusterBackup, ClusterLogs, ClusterPart, ClusterPins, Pin};
use chiplog::vault::Vault;
use chiplog::{Error, ErrorKind, LogId};
use chiplog_net::wire::ids::to_hex;
use chiplog_tier::{ServedLog, ServerVault};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// A log of a cluster as it is shown.
#[derive(Serialize)]
struct Part {
    name: String,
    log_id: String,
    first: u64,
    last: u64,
    bytes: u64,
    ends_early: bool,
}

/// The backup of a cluster as it is shown.
#[derive(Serialize)]
struct ClusterSummary {
    log_id: String,
    first: u64,
    last: u64,
    records: u64,
    files: u64,
    bytes: u64,
    seconds: f64,
    logs: Vec<Part>,
    ends_early: bool,
    notes: Vec<String>,
    branches: Vec<String>,
}

/// The backup of one log as it is shown.
#[derive(Serialize)]
struct LogSummary {
    #[serde(flatten)]
    log: BackupSummary,
    ends_early: bool,
    notes: Vec<String>,
    branches: Vec<String>,
}

impl Part {
    fn new(part: ClusterPart) -> Self {
        let ClusterPart { name, log_id, backup, ends_early, .. } = part;
        let (first, last) = backup.map_or((1, 0), |info| (info.first.get(), info.last.get()));
        let bytes = backup.map_or(0, |info| info.bytes);
        Self { name, log_id: to_hex(log_id.get()), first, last, bytes, ends_early }
    }
}

impl ClusterSummary {
    fn new(backup: &ClusterBackup, branches: Vec<String>, time: Duration) -> Self {
        let parts = backup.parts();
        let infos: Vec<BackupInfo> = parts.iter().filter_map(|part| part.backup).collect();
        let default = parts.iter().find_map(|part| part.backup.filter(|_| part.name == "default"));
        let (first, last) = default.map_or((1, 0), |info| (info.first.get(), info.last.get()));
        Self {
            log_id: parts.first().map(|part| to_hex(part.log_id.get())).unwrap_or_default(),
            first,
            last,
            records: (last + 1).saturating_sub(first),
            files: infos.iter().map(|info| info.files).sum(),
            bytes: infos.iter().map(|info| info.bytes).sum(),
            seconds: time.as_secs_f64(),
            logs: parts.into_iter().map(Part::new).collect(),
            ends_early: backup.ends_early(),
            notes: backup.notes().to_vec(),
            branches,
        }
    }

    fn words(&self, dest: &Path) -> String {
        format!(
            "backed up log {}: {}; its catalogue of named logs and {}; {} in {}, {}, at {}",
            self.log_id,
            records(self.first, self.last),
            format::many(self.logs.len() as u64 - 2, "group", "groups"),
            format::bytes(self.bytes),
            format::many(self.files, "file", "files"),
            format::duration(Duration::from_secs_f64(self.seconds)),
            dest.display()
        )
    }
}

/// The log or the logs that are fetched.
pub(super) struct Wanted<'a> {
    pub(super) log: Option<LogId>,
    pub(super) only_log: bool,
    pub(super) catalogue: Option<LogId>,
    pub(super) without: &'a [String],
    pub(super) pin: Option<&'a str>,
    /// Whether a backup that ends early is a success.
    pub(super) allow_early_end: bool,
    /// The server that is read instead of the object store.
    pub(super) server: Option<&'a ServerVault>,
    /// The sealed segments of its logs.
    pub(super) segments: Option<&'a ServerVault>,
}

/// All logs of a cluster: of their objects, or of their pins.
pub(super) enum Cluster {
    Stored(ClusterLogs),
    Pinned(ClusterPins),
}

pub(super) fn run(vault: &dyn Vault, dir: &Path, wanted: &Wanted<'_>, ui: &Ui) -> Result<Exit> {
    let started = Instant::now();
    if let Some(segments) = wanted.segments
        && let Some(log) = log_of_segments(segments, wanted)?
    {
        return fetch_segments(segments, log, dir, wanted, started, ui);
    }
    let Chosen { log, branches } = match wanted.server {
        Some(server) => Chosen { log: log_of(server, wanted)?, branches: Vec::new() },
        None => only_log(vault, wanted.log, ui)?,
    };
    let cluster = if wanted.only_log { None } else { cluster(vault, log, wanted)? };
    let bar = ui.progress(None, "fetching");
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    if let Some(cluster) = cluster {
        let without: Vec<&str> = wanted.without.iter().map(String::as_str).collect();
        let backup = match &cluster {
            Cluster::Stored(logs) => ClusterBackup::fetch(vault, logs, &without, dir, &mut progress),
            Cluster::Pinned(pins) => ClusterBackup::fetch_pins(vault, pins, &without, dir, &mut progress),
        };
        let backup = backup.map_err(|error| match error.kind() {
            ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Discarded => {
                Failure::new(error.kind(), format!("{error}; {ALONE}"))
            }
            _ => error.into(),
        })?;
        bar.finish_and_clear();
        show_notes(backup.notes(), backup.ends_early(), ui);
        let summary = ClusterSummary::new(&backup, branches, started.elapsed());
        ui.result(&summary, |summary| summary.words(dir))?;
        return Ok(ended(backup.ends_early(), wanted.allow_early_end, ui));
    }
    check_without(log, wanted.without)?;
    let backup = match wanted.pin {
        Some(pin) => Backup::fetch_pin(vault, log, pin, dir, &mut progress),
        None => Backup::fetch(vault, log, dir, &mut progress),
    };
    let backup = backup.map_err(|error| match error.kind() {
        ErrorKind::Corrupt => {
            Failure::new(error.kind(), format!("{error}; `chiplog tier verify` lists the damage"))
        }
        _ => error.into(),
    })?;
    bar.finish_and_clear();
    shown(&backup, branches, dir, wanted, started, ui)
}

/// Makes a backup of the sealed segments of a log at a server.
fn fetch_segments(
    segments: &ServerVault,
    log: LogId,
    dir: &Path,
    wanted: &Wanted<'_>,
    started: Instant,
    ui: &Ui,
) -> Result<Exit> {
    check_without(log, wanted.without)?;
    let bar = ui.progress(None, "fetching");
    let backup = Backup::fetch_segments(segments, log, dir, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let backup = backup.map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            Failure::new(error.kind(), format!("{error}; `chiplog backup` takes these, too"))
        }
        _ => error.into(),
    })?;
    shown(&backup, Vec::new(), dir, wanted, started, ui)
}

/// Shows the finished backup of one log.
fn shown(
    backup: &Backup,
    branches: Vec<String>,
    dir: &Path,
    wanted: &Wanted<'_>,
    started: Instant,
    ui: &Ui,
) -> Result<Exit> {
    show_notes(backup.notes(), backup.ends_early(), ui);
    let summary = LogSummary {
        log: BackupSummary::new(&backup.info(), 0, started.elapsed()),
        ends_early: backup.ends_early(),
        notes: backup.notes().to_vec(),
        branches,
    };
    ui.result(&summary, |summary| summary.log.words(dir))?;
    Ok(ended(backup.ends_early(), wanted.allow_early_end, ui))
}

/// The chosen log of a server, or its default log, if it has no object store: then its sealed segments are fetched. None: its objects are.
///
/// # Errors
/// `Unsupported`: the server has other logs, which were not left out.
fn log_of_segments(segments: &ServerVault, wanted: &Wanted<'_>) -> Result<Option<LogId>> {
    let is_chosen = |log: &&ServedLog| match wanted.log {
        Some(id) => log.log_id == id,
        None => log.name == DEFAULT_LOG,
    };
    let all = match segments.logs() {
        // It has another version.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unsupported) => {
            return Ok(None);
        }
        all => all?,
    };
    let Some(log) = all.iter().find(is_chosen).filter(|log| log.not_served.is_none()) else {
        return Ok(None);
    };
    let others: Vec<&ServedLog> = all.iter().filter(|other| other.log_id != log.log_id).collect();
    if others.is_empty() || wanted.only_log {
        return Ok(Some(log.log_id));
    }
    let id = to_hex(log.log_id.get());
    let what = format!(
        "the server has {} beside log {id}, and their segments do not make a backup of all: `--log-id {id} --only-log` fetches this log \
         alone, and `chiplog backup HOST:PORT/NAME` makes a backup of one named log",
        format::many(others.len() as u64, "log", "logs")
    );
    Err(Failure::new(ErrorKind::Unsupported, what))
}

/// Checks that nothing is to be left out of a log without named logs.
pub(super) fn check_without(log: LogId, without: &[String]) -> Result<()> {
    let Some(name) = without.first() else { return Ok(()) };
    let what = format!("--without {name} is for a cluster, and log {} has no named logs", to_hex(log.get()));
    Err(Failure::usage(what))
}

/// Shows the remarks about a backup. No option hides those of one that ends early.
pub(crate) fn show_notes(notes: &[String], ends_early: bool, ui: &Ui) {
    notes.iter().for_each(|note| if ends_early { ui.warn(note) } else { ui.note(note) });
}

/// The status of a command that has made or checked a backup. One that lacks records which the store has, or had, is kept: it may be all
/// that there is. It is no success for a script that does not say so.
pub(crate) fn ended(ends_early: bool, is_allowed: bool, ui: &Ui) -> Exit {
    match ends_early && !is_allowed {
        false => Exit::Ok,
        true => {
            ui.warn("the backup is finished and sound, and a log in it ends early. Use it, or look for what is missing; a script takes it \
                     with --allow-early-end");
            Exit::EndsEarly
        }
    }
}

/// The name of the default log at a server.
const DEFAULT_LOG: &str = "default";

/// The advice for a cluster of which a part is damaged.
const ALONE: &str = "`--without NAME` leaves a log out, and `--only-log` fetches the default log alone";

/// The chosen log of a server, or its default log: never the one that is left when others have no objects yet.
///
/// # Errors
/// `Unsupported`: it is a branch; or the server has other logs, which were not left out: it does not say which logs belong together, and
/// may not run all of them. `NotFound`: the default log has no object.
fn log_of(server: &ServerVault, wanted: &Wanted<'_>) -> Result<LogId> {
    let all = server.logs()?;
    let Some(default) = all.iter().find(|log| log.name == DEFAULT_LOG) else {
        return Err(Failure::new(
            ErrorKind::Unsupported,
            "the server lists no default log: it has another version",
        ));
    };
    let log = wanted.log.unwrap_or(default.log_id);
    let id = to_hex(log.get());
    let shown = |log: &ServedLog| format!("{} ({})", to_hex(log.log_id.get()), log.name);
    let is_other =
        |other: &&ServedLog| other.log_id != log && (other.has_objects || other.name == DEFAULT_LOG);
    let others: Vec<String> = all.iter().filter(is_other).map(shown).collect();
    if wanted.log.is_none() && (default.not_served.is_some() || !default.has_objects) {
        let (kind, why) = match &default.not_served {
            Some(why) => (ErrorKind::Unsupported, format!("the default log, {id}, is not served: {why}")),
            None => {
                let why = format!(
                    "the default log, {id}, has no object yet; `chiplog backup HOST:PORT DIR` makes a backup of what is in its files"
                );
                (ErrorKind::NotFound, why)
            }
        };
        let what = match &others[..] {
            [] => why,
            others => {
                format!("{why}. `--log-id ID --only-log` fetches another log alone: {}", others.join(", "))
            }
        };
        return Err(Failure::new(kind, what));
    }
    if others.is_empty() || wanted.only_log {
        return Ok(log);
    }
    let what = format!(
        "the server has {} beside log {id}, which it does not serve together: {}. `--log-id {id} --only-log` fetches this log alone, and \
         the location of the object store all of them",
        format::many(others.len() as u64, "log", "logs"),
        others.join(", ")
    );
    Err(Failure::new(ErrorKind::Unsupported, what))
}

/// The cluster whose default log this is. None: it has no named logs.
pub(super) fn cluster(vault: &dyn Vault, log: LogId, wanted: &Wanted<'_>) -> Result<Option<Cluster>> {
    if let Some(catalogue) = wanted.catalogue {
        return Ok(Some(Cluster::Stored(ClusterLogs::new(log, catalogue, BTreeMap::new()))));
    }
    let advise = |error: Error, advice: &str| match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Unsupported => {
            Failure::new(error.kind(), format!("{error}; {advice}"))
        }
        _ => error.into(),
    };
    let Some(pin) = wanted.pin else {
        let by_hand =
            "`--catalogue ID` finds the logs without the list, and `--only-log` takes the default log alone";
        let list = ClusterLogs::find(vault, log).and_then(|list| named::check_list(vault, log, list));
        let list = list.map_err(|error| advise(error, by_hand))?;
        list.as_ref().map(|list| named::await_roots(vault, list)).transpose()?;
        return Ok(list.map(Cluster::Stored));
    };
    let without: Vec<&str> = wanted.without.iter().map(String::as_str).collect();
    let by_pins = "`--without NAME` leaves a log out, and `--only-log` takes what the pin of one log keeps";
    // A set that is damaged itself says of no log.
    let set = "the backup's own list cannot be read: `--only-log` takes what the pin of one log keeps";
    ClusterPins::read(vault, log, pin).map_err(|error| advise(error, set))?;
    if let Some(pins) =
        ClusterPins::find_without(vault, log, pin, &without).map_err(|error| advise(error, by_pins))?
    {
        return Ok(Some(Cluster::Pinned(pins)));
    }
    let Some(list) = ClusterLogs::find(vault, log)
        .and_then(|list| named::check_list(vault, log, list))
        .map_err(|error| advise(error, "`--only-log` takes what the pin of the default log keeps"))?
    else {
        return Ok(None);
    };
    let mut has_pins = false;
    for log in list.groups.values().chain([&list.catalogue, &list.log_id]) {
        has_pins |= Pin::list(vault, *log)?.iter().any(|there| there.name == pin);
    }
    let id = to_hex(log.get());
    if !has_pins {
        return Err(Failure::new(
            ErrorKind::NotFound,
            format!("log {id} has no pin {pin}, nor have its named logs"),
        ));
    }
    let what = format!(
        "pin {pin} is no backup of the cluster of log {id}: it was made of one log alone, or the command was interrupted. \
         `--only-log` takes what the pin of one log keeps"
    );
    Err(Failure::new(ErrorKind::NotFound, what))
}
