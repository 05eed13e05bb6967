//! `chiplog tier list`: the logs that have objects.

use super::named::{Place, Places};
use super::objects::{Listed, Part, logs};
use crate::common::exit::Exit;
use crate::common::failure::Result;
use crate::common::format;
use crate::common::output::{Ui, print};
use chiplog::LogId;
use chiplog::vault::Vault;
use chiplog_net::wire::ids::to_hex;
use serde::Serialize;

/// A log as it is shown.
#[derive(Serialize)]
struct Shown {
    log_id: String,
    #[serde(flatten)]
    place: Place,
    objects: u64,
    first: Option<u64>,
    last: Option<u64>,
    bytes: u64,
    missing: u64,
    slices: u64,
    slice_bytes: u64,
    branch_of: Vec<Part>,
    not_served: Option<String>,
}

impl Shown {
    fn new(log: u128, listed: &Listed, places: &Places) -> Self {
        Self {
            log_id: to_hex(log),
            place: places.get(LogId(log)),
            objects: listed.objects.len() as u64,
            first: listed.first(),
            last: listed.last(),
            bytes: listed.bytes(),
            missing: listed.missing(),
            slices: listed.slices.0,
            slice_bytes: listed.slices.1,
            branch_of: listed.parts(),
            not_served: listed.refused().map(str::to_owned),
        }
    }

    fn row(&self) -> [String; 8] {
        let or_none = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
        [
            self.log_id.clone(),
            self.place.cell(),
            format::count(self.objects),
            or_none(self.first),
            or_none(self.last),
            format::bytes(self.bytes),
            format::count(self.slices),
            format::bytes(self.slice_bytes),
        ]
    }
}

/// The heads of the columns; the help explains them.
const COLUMNS: [&str; 8] = ["LOG", "ROLE", "OBJECTS", "FIRST", "LAST", "BYTES", "SLICES", "BYTES"];

pub(super) fn run(vault: &dyn Vault, ui: &Ui) -> Result<Exit> {
    let found = logs(vault, None)?;
    let places = Places::of(vault, &found);
    let logs: Vec<Shown> = found.iter().map(|(log, listed)| Shown::new(*log, listed, &places)).collect();
    if ui.json {
        logs.iter().try_for_each(|log| ui.json(log))?;
        return Ok(Exit::Ok);
    }
    if logs.is_empty() {
        ui.note("no log has objects there");
        return Ok(Exit::Ok);
    }
    let rows: Vec<_> = [COLUMNS.map(str::to_owned)].into_iter().chain(logs.iter().map(Shown::row)).collect();
    print(format::table(&rows).as_bytes())?;
    for log in logs.iter().filter(|log| !log.branch_of.is_empty()) {
        let parts: Vec<_> = log.branch_of.iter().map(Part::words).collect();
        ui.note(&format!("log {} is a branch, and reads {}", log.log_id, parts.join(", ")));
    }
    for (log, why) in found.iter().filter_map(|(log, listed)| Some((log, listed.refused()?))) {
        ui.note(&format!("log {}: {why}", to_hex(*log)));
    }
    for log in logs.iter().filter(|log| log.missing > 0) {
        let missing = format::many(log.missing, "object is", "objects are");
        ui.note(&format!("{missing} missing of log {}: `chiplog tier verify` names them", log.log_id));
    }
    Ok(Exit::Ok)
}
