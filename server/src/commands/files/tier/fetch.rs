//! `chiplog tier fetch`: a backup of the objects of a log.

use super::objects::only_log;
use crate::commands::files::backup::BackupSummary;
use crate::common::exit::Exit;
use crate::common::failure::Result;
use crate::common::output::Ui;
use chiplog::LogId;
use chiplog::backup::Backup;
use chiplog::vault::Vault;
use std::path::Path;
use std::time::Instant;

pub(super) fn run(
    vault: &dyn Vault,
    dir: &Path,
    log: Option<LogId>,
    pin: Option<&str>,
    ui: &Ui,
) -> Result<Exit> {
    let started = Instant::now();
    let log = only_log(vault, log)?;
    let bar = ui.progress(None, "fetching");
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let backup = match pin {
        Some(pin) => Backup::fetch_pin(vault, log, pin, dir, &mut progress),
        None => Backup::fetch(vault, log, dir, &mut progress),
    }?;
    bar.finish_and_clear();
    for note in backup.notes() {
        ui.say(&format!("slice {note}"));
    }
    let summary = BackupSummary::new(&backup.info(), 0, started.elapsed());
    ui.result(&summary, |summary| summary.words(dir))?;
    Ok(Exit::Ok)
}
