//! `chiplog tier fetch`: a backup of the objects of a log.

use super::objects::logs;
use crate::commands::files::backup::BackupSummary;
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::output::Ui;
use chiplog::backup::Backup;
use chiplog::vault::Vault;
use chiplog::{ErrorKind, LogId};
use chiplog_net::wire::ids::to_hex;
use std::path::Path;
use std::time::Instant;

pub(super) fn run(vault: &dyn Vault, dir: &Path, log: Option<LogId>, ui: &Ui) -> Result<Exit> {
    let started = Instant::now();
    let log = match log {
        Some(log) => log,
        None => only_log(vault)?,
    };
    let bar = ui.progress(None, "fetching");
    let backup = Backup::fetch(vault, log, dir, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    for note in backup.notes() {
        ui.say(&format!("slice {note}"));
    }
    let summary = BackupSummary::new(&backup.info(), 0, started.elapsed());
    ui.result(&summary, |summary| summary.words(dir))?;
    Ok(Exit::Ok)
}

/// The log in an object store that has one.
fn only_log(vault: &dyn Vault) -> Result<LogId> {
    let found: Vec<u128> = logs(vault, None)?.into_keys().collect();
    match found[..] {
        [] => Err(Failure::new(ErrorKind::NotFound, "no log has objects there")),
        [log] => Ok(LogId(log)),
        _ => {
            let ids: Vec<String> = found.iter().map(|log| to_hex(*log)).collect();
            let what =
                format!("{} logs have objects there: choose one by --log-id: {}", ids.len(), ids.join(", "));
            Err(Failure::new(ErrorKind::InvalidArgument, what))
        }
    }
}
