//! `chiplog tier status`: what logs have in an object store, and what servers have not stored yet.

use super::named::{Place, Places};
use super::objects::{Listed, Part, logs};
use super::payloads::{Payloads, tail_words};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use crate::connect::cluster::{Asker, Connect};
use crate::connect::target::Servers;
use chiplog::backup::{Backup, Inventory};
use chiplog::vault::Vault;
use chiplog::{ErrorKind, Index, LogId};
use chiplog_net::wire::ids::to_hex;
use chiplog_net::wire::proto::v1::StatusResponse;
use serde::Serialize;
use std::fmt::Write as _;

/// A log as it is shown.
#[derive(Serialize)]
struct Shown {
    log_id: String,
    #[serde(flatten)]
    place: Place,
    root: bool,
    objects: u64,
    bytes: u64,
    first_object: Option<u64>,
    last_object: Option<u64>,
    first: Option<u64>,
    last: Option<u64>,
    missing: u64,
    begin: u64,
    branch_of: Vec<Part>,
    pins: Vec<String>,
    pinned_objects: u64,
    pinned_bytes: u64,
    unneeded_objects: u64,
    unneeded_bytes: u64,
    #[serde(flatten)]
    behind: Behind,
    #[serde(flatten)]
    payloads: Payloads,
    unknown: u64,
    server: Option<Server>,
    /// An object that says which records there are cannot be read.
    #[serde(skip)]
    is_unreadable: bool,
}

/// The slices and the payload of the log behind its newest object.
#[derive(Default, Serialize)]
struct Behind {
    sliced_last: Option<u64>,
    tail_records: u64,
    tail_bytes: u64,
    faults: Vec<String>,
}

impl Behind {
    /// Reads slices, and the payload to which they lead.
    fn read(vault: &dyn Vault, there: &Inventory) -> Result<Self> {
        if there.slices.objects + there.payloads.objects == 0 {
            return Ok(Self::default());
        }
        let found = match Backup::slices_in(vault, there.log_id, &mut |_| {}) {
            Ok(found) => found,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::OutOfRange
                ) =>
            {
                let faults = vec![format!("slices cannot be read: {error}")];
                return Ok(Self { faults, ..Self::default() });
            }
            Err(error) => return Err(error.into()),
        };
        let mut faults: Vec<_> =
            found.faults.iter().map(|(name, why)| format!("slice {name}: {why}")).collect();
        if found.is_cut_off {
            faults.push("slices lead nowhere: those before them are missing or damaged".to_owned());
        }
        faults.extend(
            found.tail_fault.map(|why| format!("the payload behind the slices cannot be read: {why}")),
        );
        let sliced_last = found.last.map(Index::get);
        Ok(Self { sliced_last, tail_records: found.tail_records, tail_bytes: found.tail_bytes, faults })
    }

    fn words(&self) -> String {
        let mut out = String::new();
        if let Some(last) = self.sliced_last {
            _ = writeln!(out, "  slices lead to record {last}");
        }
        if self.tail_records > 0 {
            out += &tail_words(self.tail_records, self.tail_bytes);
        }
        for fault in &self.faults {
            _ = writeln!(out, "  DAMAGED: {fault}");
        }
        out
    }
}

/// The answer of its servers' leader.
#[derive(Serialize)]
struct Server {
    leader: String,
    last: u64,
    stored_index: u64,
    unstored_records: u64,
    unstored_bytes: u64,
    object_failures: u64,
}

impl Shown {
    fn new(
        there: &Inventory,
        listed: &Listed,
        records: Option<(u64, u64)>,
        behind: Behind,
        place: Place,
    ) -> Self {
        Self {
            log_id: to_hex(there.log_id.get()),
            place,
            root: there.has_root,
            objects: there.needed.objects + there.pinned.objects + there.unneeded.objects,
            bytes: there.needed.bytes + there.pinned.bytes + there.unneeded.bytes,
            first_object: there.range.map(|(first, _)| first),
            last_object: there.range.map(|(_, last)| last),
            first: records.map(|(first, _)| first),
            last: records.map(|(_, last)| last),
            missing: listed.missing(),
            begin: there.begin,
            branch_of: listed.parts(),
            pins: there.pins.iter().map(|pin| pin.name.clone()).collect(),
            pinned_objects: there.pinned.objects,
            pinned_bytes: there.pinned.bytes,
            unneeded_objects: there.unneeded.objects,
            unneeded_bytes: there.unneeded.bytes,
            behind,
            payloads: Payloads::new(there),
            unknown: there.unknown.objects,
            server: None,
            is_unreadable: false,
        }
    }

    /// Whether anything is missing or damaged that has to be there, as far as this command reads it.
    fn is_damaged(&self) -> bool {
        let lacks_root = !self.root && self.objects > 0;
        self.missing > 0 || lacks_root || self.is_unreadable || !self.behind.faults.is_empty()
    }

    fn words(&self) -> String {
        let mut out = format!("log {}{}:\n", self.log_id, self.place.words());
        let objects =
            |count, bytes| format!("{}, {}", format::many(count, "object", "objects"), format::bytes(bytes));
        let numbers = match (self.first_object, self.last_object) {
            (Some(first), Some(last)) => format!(" (number {first} to {last})"),
            _ => String::new(),
        };
        _ = writeln!(out, "  {}{numbers}", objects(self.objects, self.bytes));
        for part in &self.branch_of {
            _ = writeln!(out, "  a branch: it reads {}", part.words());
        }
        match (self.first, self.last) {
            (Some(first), Some(last)) => _ = writeln!(out, "  records {first} to {last}"),
            _ if self.is_damaged() => {
                out += "  which records there are is not known, because of what is missing or damaged: `chiplog tier verify` names it\n";
            }
            _ => _ = writeln!(out, "  no records"),
        }
        if !self.root {
            _ = writeln!(out, "  the object `root` is MISSING: servers store nothing");
        }
        if self.missing > 0 {
            _ = writeln!(out, "  {} MISSING", format::many(self.missing, "object is", "objects are"));
        }
        if self.begin > 0 {
            _ = writeln!(out, "  all records below object {} are discarded", self.begin);
        }
        if !self.pins.is_empty() {
            let kept = objects(self.pinned_objects, self.pinned_bytes);
            _ = writeln!(out, "  pins: {}; of discarded records they keep {kept}", self.pins.join(", "));
        }
        if self.unneeded_objects > 0 {
            let unneeded = objects(self.unneeded_objects, self.unneeded_bytes);
            _ = writeln!(out, "  not needed: {unneeded}: servers delete them, or `chiplog tier gc`");
        }
        out += &self.behind.words();
        out += &self.payloads.words("", "servers delete them, or `chiplog tier gc`");
        if self.unknown > 0 {
            _ = writeln!(out, "  unknown: {}", format::many(self.unknown, "object", "objects"));
        }
        if let Some(server) = &self.server {
            // Without a record these are commands, such as that an object is stored.
            let unstored = match server.unstored_records {
                0 => "every record is in an object".to_owned(),
                records => {
                    let bytes = format::bytes(server.unstored_bytes);
                    format!(
                        "{}, in {bytes} of entries, are in no object yet",
                        format::many(records, "record", "records")
                    )
                }
            };
            let (leader, last) = (&server.leader, format::count(server.last));
            _ = writeln!(out, "  {leader} leads: its last record is {last}; {unstored}");
            if server.object_failures > 0 {
                let failures = format::many(server.object_failures, "attempt", "attempts");
                _ = writeln!(out, "  {failures} to use the store failed since its start");
            }
        }
        out
    }
}

impl Server {
    fn new(leader: String, status: &StatusResponse) -> Self {
        let last = status.last;
        Self {
            leader,
            last,
            stored_index: status.stored_index,
            unstored_records: last.saturating_sub(status.stored_index.max(status.first.saturating_sub(1))),
            unstored_bytes: status.unstored_bytes,
            object_failures: status.object_failures,
        }
    }
}

pub(super) fn run(
    vault: &dyn Vault,
    only: Option<LogId>,
    cluster: Option<&Servers>,
    connect: &Connect,
    ui: &Ui,
) -> Result<Exit> {
    let leader = match cluster {
        Some(servers) => Some(Asker::new(connect, ui)?.leader(servers)?),
        None => None,
    };
    let mut shown = Vec::new();
    let mut found = logs(vault, only)?;
    // Servers can have begun to delete objects while they were listed: then the next list says so.
    if found.values().any(|listed| listed.missing() > 0) {
        found = logs(vault, only)?;
    }
    let places = Places::of_one(vault, only, &found);
    for (log, listed) in found {
        let there = Inventory::take(vault, LogId(log))?;
        let (records, is_unreadable) = match there.records(vault) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                ui.say(&error.to_string());
                (None, true)
            }
            records => (records?, false),
        };
        let behind = Behind::read(vault, &there)?;
        let records = records.map(|(first, last)| (first.get(), last.get()));
        let of_log = Shown::new(&there, &listed, records, behind, places.get(LogId(log)));
        shown.push(Shown { is_unreadable, ..of_log });
    }
    if let Some((address, status)) = leader {
        let log = shown.iter_mut().find(|log| log.log_id == status.log_id);
        let Some(log) = log else {
            let what = format!("log {} of {address} has no objects there", status.log_id);
            return Err(Failure::new(ErrorKind::NotFound, what));
        };
        log.server = Some(Server::new(address, &status));
    }
    if shown.is_empty() {
        ui.note("no log has objects there");
    }
    shown.iter().try_for_each(|log| ui.result(log, Shown::words))?;
    Ok(if shown.iter().any(Shown::is_damaged) { Exit::Corrupt } else { Exit::Ok })
}
