//! Full disks beside an object store.

use super::{Check, ELECTION_TIMEOUT, LARGE, OWN, Plan, Request, Stage};
use std::time::Duration;

/// Without payload slices, without slices, and without objects that are kept whole.
const SEED: u64 = 9;
/// It may take this long until an object is tried again.
const RETRY_MAX: Duration = Duration::from_secs(90);

/// No object can be stored until the disks are full, and appends are refused. Once objects are stored, appends go on: files go by the
/// limit of each replica, although no file can be made for the appends with which its log would roll. They start again meanwhile. The same
/// where one replica has entries that another leader replaces.
pub(super) fn files_make_room_once_they_are_stored() -> Check {
    for (voters, conflicts) in [(1, false), (3, false), (3, true)] {
        let mut stage = Stage::with(voters, 0, Plan { objects: true, ..Plan::calm(SEED) })?;
        let vault = stage.world.vault.clone().ok_or("the plan has no object store")?;
        // The objects are listed, once there are some.
        stage.append_many(120)?;
        stage.advance(RETRY_MAX)?;
        vault.refuse_parts(&["/o/"]);
        stage.append_many(40)?;
        if conflicts {
            strand_the_leader(&mut stage)?;
        }
        stage.fill_until_appends_stop()?;
        vault.refuse_parts(&[]);
        stage.world.network.open();
        stage.advance(RETRY_MAX)?;
        // No segment has begun since: a block alone says what has gone.
        for node in stage.world.voters() {
            let now = stage.world.now();
            if stage.world.machine(node).is_some_and(|machine| machine.has_to_release(now)) {
                let objects = objects_of(&mut stage);
                return Err(format!(
                    "{voters} voters, conflicts: {conflicts}: node {node} keeps its files; {objects}"
                ));
            }
            stage.world.kill(node, ELECTION_TIMEOUT)?;
        }
        stage.until("all are settled", |w| w.is_settled().is_some())?;
        for _ in 0..60 {
            let taken = stage.takes_appends();
            let objects = objects_of(&mut stage);
            taken.map_err(|why| format!("{voters} voters, conflicts: {conflicts}: {why}; {objects}"))?;
        }
        stage.until("all have what was appended", |w| w.is_settled().is_some())?;
    }
    Ok(())
}

/// A leader with a full disk has entries that no other replica gets, and another one leads.
fn strand_the_leader(stage: &mut Stage) -> Check {
    stage.fill();
    let leader = stage.leader()?;
    stage.isolate(leader);
    for _ in 0..3 {
        let batch = stage.batch(LARGE)?;
        drop(stage.world.hand(leader, Request::Append(OWN, batch))?);
    }
    stage.until("another one leads", |w| w.leader().is_some_and(|other| other != leader))
}

/// The leader's objects, as text.
fn objects_of(stage: &mut Stage) -> String {
    let (leader, now) = (stage.world.leader(), stage.world.now());
    let Some(machine) = leader.and_then(|leader| stage.world.machine(leader)) else { return String::new() };
    let ((stored, cut), has_to) = (machine.objects(), machine.has_to_release(now));
    format!("{} of {} objects are stored; files have to go: {has_to}", stored.len(), cut.len())
}
