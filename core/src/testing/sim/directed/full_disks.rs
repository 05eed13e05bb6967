//! Full disks beside an object store.

use super::{Check, ELECTION_TIMEOUT, LARGE, OWN, Plan, Request, Stage, harm};
use crate::disk::Disk as _;
use crate::disk::sim::{Damage, SimDisk};
use crate::error::Result;
use crate::store::segment::file_number;
use crate::types::NodeId;
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
        let mut stage = stage_of_full_disks(voters, conflicts)?;
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

/// The disks of these voters are full, and objects can be stored from now on.
fn stage_of_full_disks(voters: u64, conflicts: bool) -> Check<Stage> {
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
    Ok(stage)
}

/// A block says which files go. They go, or the process ends, and they go at the restart. Each time a block that says so is damaged: the log
/// opens, or has to be repaired there, and another block says the same.
pub(super) fn where_files_begin_is_said_twice() -> Check {
    let mut stage = stage_of_full_disks(1, false)?;
    let node = stage.leader()?;
    let limit = stage.world.now().plus(RETRY_MAX);
    let (mut oldest, mut restarts, mut judged) = (None, 0, 0);
    while stage.world.now() < limit && stage.world.step()? {
        let Some(machine) = stage.world.machine(node) else { continue };
        let (now, is_said_once) = (machine.oldest_file(), machine.says_once_what_goes());
        let have_gone = oldest.is_some_and(|before| now > before);
        oldest = Some(now);
        if is_said_once && restarts < RESTARTS_MAX {
            restarts += 1;
            let disk = disk_of(&stage, node)?;
            reopen(&stage, node, &disk).map_err(|why| format!("the log does not open: {why}"))?;
            one_bad_block_is_survived(&stage, node, &disk)
                .map_err(|why| format!("after a restart: {why}"))?;
        }
        if have_gone {
            let disk = disk_of(&stage, node)?;
            let image = disk.visible();
            // Their names go a little later.
            let mut gone = image.names().filter(|name| file_number(name).is_some_and(|n| Some(n) < now));
            gone.try_for_each(|name| disk.remove(name)).map_err(|why| why.to_string())?;
            judged += usize::from(one_bad_block_is_survived(&stage, node, &disk)?);
        }
    }
    match (restarts, judged) {
        (0, _) | (_, 0) => Err(format!("files went {judged} times, and {restarts} restarts were tried")),
        _ => Ok(()),
    }
}

/// How many restarts are tried.
const RESTARTS_MAX: usize = 4;

/// Damages each block of the last segment that says where the files begin, one at a time. False: there is none.
fn one_bad_block_is_survived(stage: &Stage, node: NodeId, disk: &SimDisk) -> Check<bool> {
    let image = disk.visible();
    let Some(last) = harm::begun(&image).next() else { return Err("no segment has begun".to_owned()) };
    let said: Vec<_> =
        last.blocks.iter().filter_map(|block| block.kept.map(|kept| (block.at, kept))).collect();
    for (at, kept) in &said {
        let disk = SimDisk::new(image.clone());
        disk.damage(&last.name, &Damage::FlipBit { bit: (*at as u64 + 20) * 8 });
        let Err(why) = reopen(stage, node, &disk) else { continue };
        let is_there =
            why.location().is_some_and(|(path, place)| path.ends_with(&last.name) && place == *at as u64);
        let is_said_again = said.iter().any(|(other, says)| other != at && says >= kept);
        if !(is_there && is_said_again) {
            return Err(format!("of {said:?} the block at {at} is damaged: {why}"));
        }
    }
    Ok(!said.is_empty())
}

/// The disk of a node as a kill leaves it.
fn disk_of(stage: &Stage, node: NodeId) -> Check<SimDisk> {
    let host = stage.world.hosts.get(&node).ok_or("there is no such node")?;
    Ok(SimDisk::new(host.disk.visible()))
}

/// Opens a node's log on another disk, which does not change the node.
fn reopen(stage: &Stage, node: NodeId, disk: &SimDisk) -> Result<()> {
    stage.world.hosts.get(&node).map_or(Ok(()), |host| host.opens_on(disk, &stage.world.plan))
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
