//! Scenarios of single objects: one that cannot be read, one whose examination cannot be started, one that is put twice, one that may be
//! another history's.

use super::object_class::{batch, entry, with_rare_scrub};
use super::turns::{Order, Turns};
use super::{Check, Stage};
use crate::error::{Error, ErrorKind, Result};
use crate::replica::node::tiering::put_and_look;
use crate::store::object_file::{MadeObject, Stretch, segment_file};
use crate::store::objects::names::{object_name, root_name, root_text};
use crate::store::segment::Base;
use crate::sync::start_faults;
use crate::sync::threads::in_parallel;
use crate::testing::sim::plan::Plan;
use crate::testing::sim::vault::SimVault;
use crate::types::{EntryIndex, Index, LogId, Term};
use crate::vault::{MemoryVault, Vault};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

impl Stage {
    /// Has a new object put, and steps until the log says that it is stored. Returns its name.
    fn store_object(&mut self, vault: &SimVault) -> Check<String> {
        let newest = || vault.names().into_iter().filter(|name| name.contains("/o/")).max();
        let before = newest();
        self.append()?;
        let leader = self.leader()?;
        self.world.machine(leader).into_iter().for_each(|machine| machine.cut_objects());
        self.within("an object is stored", Duration::from_secs(60), |stage| {
            newest() > before && newest().is_some_and(|name| stage.is_stored(&name))
        })?;
        newest().ok_or_else(|| "no object is there".to_owned())
    }

    /// Whether the log says that an object is stored.
    fn is_stored(&mut self, name: &str) -> bool {
        let leader = self.world.leader();
        leader
            .and_then(|leader| self.world.machine(leader))
            .is_some_and(|leader| leader.objects().0.iter().any(|stored| stored == name))
    }

    /// Steps until something holds, which takes at most this long.
    fn within(&mut self, what: &str, time: Duration, mut holds: impl FnMut(&mut Self) -> bool) -> Check {
        let end = self.world.now().plus(time);
        while !holds(self) {
            if self.world.now() > end || !self.world.step()? {
                return Err(format!("this did not happen: {what}: {}", self.world.ails()));
            }
        }
        Ok(())
    }
}

/// An object cannot be read, and everything else can. It is put again, not at once, and counts as stored then: other objects follow.
pub(super) fn object_that_cannot_be_read_is_put_again() -> Check {
    let (mut stage, vault) = with_rare_scrub(3)?;
    vault.poison_object();
    stage.append_payload()?;
    let leader = stage.leader()?;
    stage.world.machine(leader).into_iter().for_each(|machine| machine.cut_objects());
    stage.until("an object is put", |_| vault.unreadable().is_some())?;
    let name = vault.unreadable().unwrap_or_default();
    stage.advance(Duration::from_secs(200))?;
    if vault.unreadable().is_none() || stage.is_stored(&name) {
        return Err(
            "an object was put again after a short failure, or counts as stored without it".to_owned()
        );
    }
    stage.within("the object is put again", Duration::from_secs(600), |_| vault.unreadable().is_none())?;
    stage.within("it counts as stored", Duration::from_secs(120), |stage| stage.is_stored(&name))?;
    stage.store_object(&vault).map(drop)
}

/// The answer to the put of an object is lost, and the object cannot be read. The replica that has tried to put it knows that, and puts it
/// again.
pub(super) fn object_whose_put_had_no_answer_is_put_again() -> Check {
    let (mut stage, vault) = with_rare_scrub(1)?;
    vault.poison_object();
    vault.lose_answer();
    stage.append_payload()?;
    let leader = stage.leader()?;
    stage.world.machine(leader).into_iter().for_each(|machine| machine.cut_objects());
    stage.until("an object is put", |_| vault.unreadable().is_some())?;
    let name = vault.unreadable().unwrap_or_default();
    stage.within("it is put again", Duration::from_secs(1_200), |_| vault.unreadable().is_none())?;
    stage.within("it counts as stored", Duration::from_secs(120), |stage| stage.is_stored(&name))?;
    stage.store_object(&vault).map(drop)
}

/// An object cannot be read when its turn comes. The thread that is to examine it again cannot be started: it is examined a little later, and
/// stored again, and not only once its turn comes in the next pass.
pub(super) fn examination_that_cannot_start_is_put_off() -> Check {
    /// Stores no slices.
    const SEED: u64 = 1;
    const PASS: Duration = Duration::from_secs(3_600);
    let plan = Plan { objects: true, object_scrub: PASS, ..Plan::calm(SEED) };
    let mut stage = Stage::with(1, 0, Plan { voters: 1, ..plan })?;
    let Some(vault) = stage.world.vault.clone() else { return Err("there is no object store".to_owned()) };
    let name = stage.store_object(&vault)?;
    vault.poison(&name);
    stage.within("its turn comes", PASS * 2, |_| vault.refusals() > 0)?;
    // It is looked at every 150 s, and stored again in the fourth look.
    stage.advance(Duration::from_secs(430))?;
    start_faults::fail_next();
    stage.within("an examination fails to start", PASS, |_| !start_faults::is_waiting())?;
    stage.within("the object is stored again", Duration::from_secs(60), |_| vault.unreadable().is_none())
}

const LOG: LogId = LogId(3);
/// The most calls of one side.
const CALLS_MAX: u32 = 16;

/// An object of two entries.
fn object() -> Check<MadeObject> {
    let (begin, end) = (EntryIndex(9), EntryIndex(11));
    let batch = batch(500)?;
    let entries = [entry(10, None), entry(11, Some((batch.header().crc, batch.as_bytes().clone())))];
    let base = |raft, next| Base { raft, term: Term(4), next: Index(next) };
    let stretch = Stretch { log: LOG, number: 0, begin: base(begin, 7), end: base(end, 8) };
    segment_file(&stretch, &entries).map_err(|error| error.to_string())
}

/// The first replica's way to the object store: what it puts arrives damaged.
#[derive(Debug)]
struct Spoiling(Turns);

fn spoil(name: &str, bytes: Vec<u8>) -> Bytes {
    let (mut bytes, at) = (bytes, 100);
    if name.contains("/o/") {
        bytes[at] ^= 1;
    }
    bytes.into()
}

impl Vault for Spoiling {
    crate::vault::pass_on!(0: get, size, list, delete);

    fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
        self.0.put(name, &[spoil(name, pieces.concat())])
    }

    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.0.create(name, spoil(name, bytes.to_vec()))
    }
}

/// Plays one order. Whether the object was read by any side, and found to be sound.
fn play(first: usize, switches: Vec<u32>) -> Check<bool> {
    let wrong = |error: Error| error.to_string();
    let memory = Arc::new(MemoryVault::default());
    memory.put(&root_name(LOG), &[root_text(LOG).into()]).map_err(wrong)?;
    let order = Order::new(first, switches.clone());
    let (bad, good) = (Spoiling(Turns::new(&memory, &order, 0)), Turns::new(&memory, &order, 1));
    let [one, two] = [object()?, object()?].map(|made| Arc::new(std::sync::Mutex::new(Some(made))));
    let whole = object()?.pieces.concat();
    let mut was_sound = false;
    let side = |me: &usize| {
        let (vault, made): (&dyn Vault, _) = if *me == 0 { (&bad, &one) } else { (&good, &two) };
        let made = made.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let done = made.map_or(Ok(false), |made| put_and_look(vault, (LOG, 0), made, true));
        order.end(*me);
        done
    };
    in_parallel(2, &[0, 1], side, |sound| was_sound |= sound).map_err(wrong)?;
    let name = object_name(LOG, 0);
    let size = memory.size(&name).map_err(wrong)?.unwrap_or(0);
    let is_sound = memory.get(&name, 0..size).map_err(wrong)? == whole;
    match was_sound && !is_sound {
        true => Err(format!(
            "an object was read and is sound, and a put that landed later has damaged it: caller {first} first, switches after {switches:?}"
        )),
        false => Ok(was_sound),
    }
}

/// Two replicas put one object of the class `object`, and what one of them puts arrives damaged. Once any of them has read it, and it is
/// sound, it stays so.
pub(super) fn object_that_was_read_stays_sound() -> Check {
    let mut counted = 0;
    for first in [0, 1] {
        for a in 0..CALLS_MAX {
            for b in a..CALLS_MAX {
                counted += usize::from(play(first, vec![a, b])?);
            }
        }
    }
    if counted > 0 { Ok(()) } else { Err("no object was sound".to_owned()) }
}

/// An object store that cannot give objects, for reasons of each of them.
#[derive(Debug)]
struct Unreading(MemoryVault);

impl Vault for Unreading {
    crate::vault::pass_on!(0: put, create, size, list, delete);

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        match name.contains("/o/") {
            true => Err(Error::new(ErrorKind::Io, "a bad sector")),
            false => self.0.get(name, range),
        }
    }
}

/// An object that may be another history's stays: one that cannot be read, and one whose footer is damaged and the rest of which is another
/// than this log's. One that is cut off is replaced, and so is one with a damaged footer alone.
pub(super) fn object_that_may_be_of_another_history_stays() -> Check {
    let wrong = |error: Error| error.to_string();
    let name = object_name(LOG, 0);
    let ours = object()?.pieces.concat();
    let mut theirs = ours.clone();
    let footer = theirs.len() - 100;
    theirs[ours.len() / 3] ^= 1;
    theirs[footer] ^= 1;
    let cut_off = ours[..ours.len() / 2].to_vec();
    let mut damaged = ours.clone();
    damaged[footer] ^= 1;
    // A file system has lost what was written last.
    let mut zeroed = ours.clone();
    zeroed[ours.len() / 3 / 4096 * 4096..].fill(0);
    for (there, can_be_read, stays) in [
        (&theirs, false, true),
        (&theirs, true, true),
        (&cut_off, true, false),
        (&damaged, true, false),
        (&zeroed, true, false),
    ] {
        let vault = Unreading(MemoryVault::default());
        vault.put(&root_name(LOG), &[root_text(LOG).into()]).map_err(wrong)?;
        vault.put(&name, &[there.clone().into()]).map_err(wrong)?;
        let store: &dyn Vault = if can_be_read { &vault.0 } else { &vault };
        let done = put_and_look(store, (LOG, 0), object()?, false);
        let size = vault.size(&name).map_err(wrong)?.unwrap_or(0);
        let now = vault.0.get(&name, 0..size).map_err(wrong)?;
        let is_as_it_should_be = if stays { now == *there } else { now == ours };
        if !is_as_it_should_be {
            return Err(format!(
                "readable: {can_be_read}: an object stays or is replaced, and should not: {done:?}"
            ));
        }
    }
    Ok(())
}
