//! `chiplog tier pin`, `unpin` and `pins`: what keeps objects of a log from deletion.

use super::objects::{logs, only_log};
use crate::common::exit::Exit;
use crate::common::failure::Result;
use crate::common::format;
use crate::common::output::{Ui, print};
use chiplog::backup::Pin;
use chiplog::vault::Vault;
use chiplog::{Index, LogId};
use chiplog_net::wire::ids::to_hex;
use serde::Serialize;

/// A pin as it is shown.
#[derive(Serialize)]
struct Shown {
    log_id: String,
    name: String,
    first_object: u64,
    last_object: u64,
    first: u64,
    last: u64,
    made_timestamp: u64,
    made_time: String,
    missing: u64,
}

impl Shown {
    fn new(log: LogId, pin: &Pin, missing: u64) -> Self {
        Self {
            log_id: to_hex(log.get()),
            name: pin.name.clone(),
            first_object: pin.first_object,
            last_object: pin.last_object,
            first: pin.first.get(),
            last: pin.last.get(),
            made_timestamp: pin.made.0,
            made_time: format::time(pin.made),
            missing,
        }
    }

    fn words(&self) -> String {
        format!(
            "pinned {}: records {} to {} of log {}, in objects {} to {}",
            self.name, self.first, self.last, self.log_id, self.first_object, self.last_object
        )
    }

    fn row(&self) -> [String; 5] {
        [
            self.log_id.clone(),
            self.name.clone(),
            format!("{} to {}", self.first_object, self.last_object),
            format!("{} to {}", self.first, self.last),
            self.made_time.clone(),
        ]
    }
}

/// The heads of the columns; the help explains them.
const COLUMNS: [&str; 5] = ["LOG", "NAME", "OBJECTS", "RECORDS", "MADE"];

/// A pin that was removed.
#[derive(Serialize)]
struct Removed {
    log_id: String,
    name: String,
}

pub(super) fn pin(
    vault: &dyn Vault,
    name: &str,
    log: Option<LogId>,
    upto: Option<u64>,
    ui: &Ui,
) -> Result<Exit> {
    let log = only_log(vault, log)?;
    let pin = Pin::make(vault, log, name, upto.map(Index))?;
    ui.result(&Shown::new(log, &pin, 0), Shown::words)?;
    Ok(Exit::Ok)
}

pub(super) fn unpin(vault: &dyn Vault, name: &str, log: Option<LogId>, ui: &Ui) -> Result<Exit> {
    let log = only_log(vault, log)?;
    Pin::remove(vault, log, name)?;
    let removed = Removed { log_id: to_hex(log.get()), name: name.to_owned() };
    ui.result(&removed, |removed| format!("removed pin {} of log {}", removed.name, removed.log_id))?;
    Ok(Exit::Ok)
}

pub(super) fn list(vault: &dyn Vault, only: Option<LogId>, ui: &Ui) -> Result<Exit> {
    let mut shown = Vec::new();
    for log in logs(vault, only)?.into_keys().map(LogId) {
        for pin in Pin::list(vault, log)? {
            shown.push(Shown::new(log, &pin, pin.missing(vault, log)?));
        }
    }
    if ui.json {
        shown.iter().try_for_each(|pin| ui.json(pin))?;
        return Ok(Exit::Ok);
    }
    if shown.is_empty() {
        ui.say("no log has pins there");
        return Ok(Exit::Ok);
    }
    let rows: Vec<_> = [COLUMNS.map(str::to_owned)].into_iter().chain(shown.iter().map(Shown::row)).collect();
    print(format::table(&rows).as_bytes())?;
    for pin in shown.iter().filter(|pin| pin.missing > 0) {
        let missing = format::many(pin.missing, "object is", "objects are");
        ui.say(&format!(
            "{missing} missing under pin {}: lost, or the command that made it was interrupted. If it was, remove the pin and make it again",
            pin.name
        ));
    }
    Ok(Exit::Ok)
}
