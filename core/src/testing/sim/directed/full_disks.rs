//! Full disks beside an object store.

use super::{Check, Plan, Stage};
use std::time::Duration;

/// Without payload slices, without slices, and without objects that are kept whole.
const SEED: u64 = 9;
/// It may take this long until an object is tried again.
const RETRY_MAX: Duration = Duration::from_secs(90);

/// No object can be stored until the disks are full, and appends are refused. Once objects are stored, appends go on: files go by the
/// limit of each replica, although no file can be made for the appends with which its log would roll.
pub(super) fn files_make_room_once_they_are_stored() -> Check {
    for voters in [1, 3] {
        let mut stage = Stage::with(voters, 0, Plan { objects: true, ..Plan::calm(SEED) })?;
        let vault = stage.world.vault.clone().ok_or("the plan has no object store")?;
        // The objects are listed, once there are some.
        stage.append_many(120)?;
        stage.advance(RETRY_MAX)?;
        vault.refuse_part(Some("/o/".to_owned()));
        stage.append_many(40)?;
        stage.fill_until_appends_stop()?;
        vault.refuse_part(None);
        stage.advance(RETRY_MAX)?;
        for _ in 0..60 {
            let taken = stage.takes_appends();
            taken.map_err(|why| format!("{voters} voters: {why}; {}", objects_of(&mut stage)))?;
        }
    }
    Ok(())
}

/// The leader's objects, as text.
fn objects_of(stage: &mut Stage) -> String {
    let (leader, now) = (stage.world.leader(), stage.world.now());
    let Some(machine) = leader.and_then(|leader| stage.world.machine(leader)) else { return String::new() };
    let ((stored, cut), has_to) = (machine.objects(), machine.has_to_release(now));
    format!("{} of {} objects are stored; files have to go: {has_to}", stored.len(), cut.len())
}
