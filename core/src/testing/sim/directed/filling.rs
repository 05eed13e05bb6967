//! A disk is filled with whole objects, step by step: crashes after each call to the disk, damage, and files that need the room.

use super::Check;
use crate::disk::Disk;
use crate::disk::sim::SimDisk;
use crate::error::Result;
use crate::record::crc::crc32c;
use crate::store::filling::{FillLimits, Filling, Step};
use crate::store::format::objects::StoredObject;
use crate::store::format::segment::{Base, IndexEntry};
use crate::store::objects::cache::{KeptObject, ObjectCache};
use crate::store::objects::names::{Lineage, object_name, root_name, root_text};
use crate::store::objects::payloads::Payloads;
use crate::store::segment::objects::ListedObject;
use crate::store::segment::{ReadMode, Segment, Segments};
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, Index, LogId, SegmentId, Term, Timestamp};
use crate::vault::{MemoryVault, Vault};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const LOG: LogId = LogId(7);
/// Two chunks of a sorted object.
const OBJECT_BYTES: usize = 300 << 10;
const OBJECTS: u64 = 4;
const SEGMENT_BYTES: u32 = 64 << 10;
const HOUR: Duration = Duration::from_secs(3601);

/// The bytes of an object. Filling does not look into them.
fn bytes_of(number: u64) -> Vec<u8> {
    (0..OBJECT_BYTES).map(|n| (n as u64 * 31 + n as u64 / 4096 + number * 7) as u8).collect()
}

fn base(entry: u64) -> Base {
    Base { raft: EntryIndex(entry), term: Term(1), next: Index(entry + 1) }
}

/// A log with four objects, and one file behind them.
struct Rig {
    disk: SimDisk,
    vault: Arc<MemoryVault>,
    segments: Arc<Segments>,
    filling: Filling,
    now: Moment,
}

impl Rig {
    fn new(fill_bytes: u64, local_bytes: Option<u64>) -> Result<Self> {
        let vault = Arc::new(MemoryVault::default());
        vault.put(&root_name(LOG), &[root_text(LOG).into()])?;
        for number in 0..OBJECTS {
            vault.put(&object_name(LOG, number), &[bytes_of(number).into()])?;
        }
        Ok(Self::on(SimDisk::default(), vault, fill_bytes, local_bytes))
    }

    /// The same log, opened on this disk.
    fn on(disk: SimDisk, vault: Arc<MemoryVault>, fill_bytes: u64, local_bytes: Option<u64>) -> Self {
        let file = Segment::growing(9, SegmentId(1), 1 << 30, base(OBJECTS * 10), Timestamp(OBJECTS));
        let list = VecDeque::from([Arc::new(file)]);
        let disks: Arc<dyn Disk> = Arc::new(disk.clone());
        let segments = Arc::new(Segments::new(disks.clone(), ReadMode::Read, list));
        let cache = ObjectCache::new(vault.clone(), disks, false, 8 << 20, true);
        let payloads = Payloads::new(vault.clone(), LOG, 8 << 20);
        segments.objects().set_cache(Arc::new(cache), Arc::new(payloads));
        let listed = |number: u64| {
            let object = StoredObject {
                bytes: OBJECT_BYTES as u32,
                data_end: OBJECT_BYTES as u32 - 4096,
                index_count: 0,
                index_crc: 0,
                crc: crc32c(&bytes_of(number)),
            };
            let timestamps = (Timestamp(number), Timestamp(number + 1));
            let (begin, end) = (base(number * 10), base(number * 10 + 10));
            ListedObject { number, begin, end, timestamps, object }
        };
        segments.objects().update(&Lineage::of(LOG), Vec::new(), 0, (0..OBJECTS).map(listed));
        let limits = FillLimits { fill_bytes, local_bytes, local_age: None, segment_bytes: SEGMENT_BYTES };
        let filling = Filling::new(&segments, limits);
        Self { disk, vault, segments, filling, now: Moment::default() }
    }

    fn cache(&self) -> Result<Arc<ObjectCache>, String> {
        self.segments.objects().cache().ok_or_else(|| "there is no cache".to_owned())
    }

    fn kept(&self) -> Result<Vec<KeptObject>, String> {
        Ok(self.cache()?.kept())
    }

    /// The objects that are kept whole.
    fn whole(&self) -> Result<Vec<u64>, String> {
        Ok(self.kept()?.iter().filter(|kept| kept.is_whole).map(|kept| kept.number).collect())
    }

    /// Fills the disk until there is nothing to do now, and checks everything after each step.
    fn run(&mut self, mut check: impl FnMut(&Self) -> Check) -> Check<Step> {
        for _ in 0..100 {
            let step = self.filling.step(self.now);
            check(self)?;
            match step {
                Step::More | Step::GiveWay => {}
                Step::Wait(_) | Step::End => return Ok(step),
            }
        }
        Err("it never ends".into())
    }

    /// Lets the file grow by this many bytes.
    fn grow(&self, bytes: usize) {
        if let Some(file) = self.segments.newest() {
            let (end, offset) = file.written();
            let entry = IndexEntry {
                first: end.next,
                raft_index: end.raft.next(),
                timestamp: Timestamp(OBJECTS),
                offset: offset as u32,
            };
            file.grow(entry, bytes, base(end.raft.0 + 1));
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// That each file with the name of a whole object has all its bytes.
fn check_files<'a>(
    names: impl Iterator<Item = &'a str>,
    file: impl Fn(&str) -> Option<Vec<u8>>,
) -> Check<u64> {
    let mut count = 0;
    for name in names.filter(|name| name.len() == 20 + 1 + 32 + ".object".len()) {
        let number: u64 = name[..20].parse().map_err(text)?;
        if file(name).as_deref() != Some(&bytes_of(number)[..]) {
            return Err(format!("{name} has not the bytes of the object"));
        }
        count += 1;
    }
    Ok(count)
}

/// After any crash a file with the name of a whole object is one, and the next opening keeps it.
pub(super) fn whole_object_outlives_a_crash() -> Check {
    let mut rig = Rig::new(1 << 30, None).map_err(text)?;
    rig.run(|_| Ok(()))?;
    if rig.whole()? != [0, 1, 2, 3] {
        return Err(format!("kept are {:?}", rig.kept()?));
    }
    for state in rig.disk.history().states() {
        for choose in [|_: usize| 0, |versions: usize| versions - 1, |versions: usize| versions / 2] {
            let image = state.crash(choose);
            check_files(image.names(), |name| image.file(name))?;
        }
    }
    let calls = rig.disk.history_len();
    let mut again = Rig::on(rig.disk.crash(|_| 0), rig.vault.clone(), 1 << 30, None);
    let image = again.disk.visible();
    let count = check_files(image.names(), |name| image.file(name))?;
    let others = image.names().filter(|name| name.ends_with(".object")).count() as u64 - count;
    if again.whole()? != [0, 1, 2, 3] || others > 0 {
        return Err(format!(
            "after a crash kept are {:?} of {calls} calls, and {others} other files",
            again.kept()?
        ));
    }
    // The object store is not needed for them.
    let fetched = again.cache()?.figures().0;
    again.run(|_| Ok(()))?;
    match again.cache()?.figures().0 == fetched {
        true => Ok(()),
        false => Err("objects are fetched again".into()),
    }
}

/// An object that came damaged is not kept, and those behind it are.
pub(super) fn damaged_object_is_not_kept() -> Check {
    let mut rig = Rig::new(1 << 30, None).map_err(text)?;
    let mut damaged = bytes_of(2);
    damaged[OBJECT_BYTES / 2] ^= 1;
    rig.vault.put(&object_name(LOG, 2), &[damaged.into()]).map_err(text)?;
    let is_sound = |rig: &Rig| {
        let image = rig.disk.visible();
        check_files(image.names(), |name| image.file(name)).map(drop)
    };
    rig.run(is_sound)?;
    if rig.whole()? != [0, 1, 3] || rig.kept()?.len() != 3 || rig.cache()?.kept_figures().1 != 1 {
        return Err(format!("kept are {:?}", rig.kept()?));
    }
    // Once it is repaired it is kept.
    rig.vault.put(&object_name(LOG, 2), &[bytes_of(2).into()]).map_err(text)?;
    rig.run(is_sound)?;
    if rig.whole()? != [0, 1, 3] {
        return Err("a damaged object is fetched again and again".into());
    }
    rig.now = rig.now.plus(HOUR);
    rig.run(is_sound)?;
    if rig.whole()? != [0, 1, 2, 3] {
        return Err(format!("kept are {:?}", rig.kept()?));
    }
    // Damage on this disk: the file goes when a reader meets it, and comes back.
    let newest = rig
        .segments
        .objects()
        .holding(Index(35))
        .map_err(|error| error.to_string())?
        .ok_or("no object has record 35")?;
    let data = rig.segments.objects().open(&newest).map_err(text)?;
    if let crate::store::segment::Source::Object(object) = &data.source {
        object.discard();
    }
    if rig.whole()? != [0, 1, 2] {
        return Err(format!("kept are {:?}", rig.kept()?));
    }
    rig.run(is_sound)?;
    match rig.whole()? == [0, 1, 2, 3] {
        true => Ok(()),
        false => Err(format!("kept are {:?}", rig.kept()?)),
    }
}

/// Files and objects together take no more than the log's own limit; the oldest objects go, and nothing comes back for them.
pub(super) fn objects_make_room_for_files() -> Check {
    const LOCAL: u64 = 1 << 20;
    let mut rig = Rig::new(1 << 30, Some(LOCAL)).map_err(text)?;
    let mut grown = 0;
    for (bytes, expected) in
        [(100 << 10, &[2, 3][..]), (300 << 10, &[2, 3]), (100 << 10, &[3]), (400 << 10, &[])]
    {
        rig.grow(bytes);
        grown += bytes as u64;
        rig.run(|_| Ok(()))?;
        let kept: u64 = rig.kept()?.iter().map(|kept| kept.bytes).sum();
        if rig.whole()? != expected || kept + grown > LOCAL {
            return Err(format!("beside {grown} bytes of files {kept} are kept: {:?}", rig.whole()?));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::{Call, Fault, Landed, Trouble};
    use crate::disk::spare_files::make_room;
    use std::io::IoSlice;

    /// The newest ones, as many as the limit permits.
    #[test]
    fn newest_objects_are_kept() {
        let mut rig = Rig::new(2 * OBJECT_BYTES as u64 + 5, None).unwrap();
        rig.run(|_| Ok(())).unwrap();
        assert_eq!(rig.whole().unwrap(), [2, 3]);
        // Files have the records of the newest one again: only what is not in files counts.
        let mut less = Rig::on(rig.disk.kill(), rig.vault.clone(), OBJECT_BYTES as u64, None);
        less.run(|_| Ok(())).unwrap();
        assert_eq!(less.whole().unwrap(), [3]);
        // Discarded records.
        less.segments.objects().update(&Lineage::of(LOG), Vec::new(), OBJECTS - 1, std::iter::empty());
        less.run(|_| Ok(())).unwrap();
        assert_eq!(less.whole().unwrap(), [3]);
        less.segments.objects().update(&Lineage::of(LOG), Vec::new(), OBJECTS, std::iter::empty());
        less.run(|_| Ok(())).unwrap();
        assert_eq!(less.whole().unwrap(), [3], "a log that knows no object may know it soon");
        let none = Rig::on(less.disk.kill(), less.vault.clone(), 1 << 30, None);
        none.cache().unwrap().close();
        assert_eq!(none.whole().unwrap(), [3]);
        assert_eq!(
            ObjectCache::new(none.vault.clone(), Arc::new(none.disk.clone()), false, 8 << 20, false).kept(),
            []
        );
        assert!(!none.disk.list().unwrap().iter().any(|name| name.ends_with(".object")));
    }

    /// Chunks that readers have fetched count, and a store that is down costs nothing that was fetched.
    #[test]
    fn what_was_fetched_stays_during_an_outage() {
        let mut rig = Rig::new(1 << 30, None).unwrap();
        rig.vault.delete(&object_name(LOG, 3)).unwrap();
        rig.vault.delete(&root_name(LOG)).unwrap();
        assert_eq!(rig.run(|_| Ok(())).unwrap(), Step::Wait(Duration::from_secs(1)));
        rig.now = rig.now.plus(Duration::from_secs(1));
        assert_eq!(rig.run(|_| Ok(())).unwrap(), Step::Wait(Duration::from_secs(2)));
        assert_eq!(rig.cache().unwrap().kept_figures(), (0, 2));
        rig.vault.put(&object_name(LOG, 3), &[bytes_of(3).into()]).unwrap();
        rig.now = rig.now.plus(Duration::from_secs(2));
        assert_eq!(rig.filling.step(rig.now), Step::More);
        let first = rig.kept().unwrap();
        assert!(first[0].number == 3 && first[0].bytes > 0 && !first[0].is_whole, "{first:?}");
        rig.vault.delete(&object_name(LOG, 3)).unwrap();
        assert!(matches!(rig.filling.step(rig.now), Step::Wait(_)));
        assert_eq!(rig.kept().unwrap(), first);
        // An object that is missing while the log's others are there is lost. The next ones are kept.
        rig.vault.put(&root_name(LOG), &[root_text(LOG).into()]).unwrap();
        rig.now = rig.now.plus(Duration::from_secs(60));
        rig.run(|_| Ok(())).unwrap();
        assert_eq!(rig.whole().unwrap(), [0, 1, 2]);
    }

    /// They give way before the log is refused a file, and do not come back as long as the disk has little room.
    #[test]
    fn objects_give_way_where_the_disk_is_full() {
        let mut rig = Rig::new(1 << 30, None).unwrap();
        rig.run(|_| Ok(())).unwrap();
        rig.cache().unwrap().give_way();
        rig.disk.limit_space(Some(rig.disk.space_used()));
        assert!(make_room(&rig.disk, SEGMENT_BYTES.into()));
        assert_eq!(rig.whole().unwrap(), [1, 2, 3]);
        assert!(matches!(rig.run(|_| Ok(())).unwrap(), Step::Wait(_)));
        assert_eq!(rig.whole().unwrap(), [1, 2, 3], "it has no room beside 16 segments");
        rig.cache().unwrap().close();
        assert!(!make_room(&rig.disk, SEGMENT_BYTES.into()), "the directory is another handle's");
        assert_eq!(rig.filling.step(rig.now), Step::End);
    }

    /// Cached objects give way as well, before those that are kept.
    #[test]
    fn cached_objects_give_way_where_the_disk_is_full() {
        let mut rig = Rig::new(2 * OBJECT_BYTES as u64, None).unwrap();
        rig.run(|_| Ok(())).unwrap();
        rig.cache().unwrap().give_way();
        let open = |rig: &Rig, record| {
            let object = rig.segments.objects().holding(Index(record)).unwrap().unwrap();
            rig.segments.objects().open(&object).unwrap()
        };
        let cached = |rig: &Rig| {
            let names = rig.disk.list().unwrap();
            names.into_iter().filter(|name| name.len() < 40).collect::<Vec<_>>()
        };
        assert_eq!(rig.whole().unwrap(), [2, 3]);
        let older = open(&rig, 5).copy(0, OBJECT_BYTES).unwrap().unwrap();
        assert_eq!((older, cached(&rig).len()), (bytes_of(0), 1));
        rig.disk.limit_space(Some(rig.disk.space_used()));
        // Another object needs room, for which the cached one goes.
        let file = rig.segments.objects().holding(Index(15)).unwrap().unwrap();
        let failed = rig.segments.objects().open(&file).err().map(|error| error.kind());
        assert_eq!((failed, cached(&rig).len()), (None, 1), "it goes for the file already");
        assert_eq!(open(&rig, 15).copy(0, OBJECT_BYTES).unwrap().unwrap(), bytes_of(1));
        assert_eq!(cached(&rig).len(), 1);
        rig.disk.limit_space(Some(rig.disk.space_used()));
        assert!(make_room(&rig.disk, SEGMENT_BYTES.into()));
        assert_eq!((cached(&rig), rig.whole().unwrap()), (Vec::new(), vec![2, 3]));
    }

    /// A disk that fails costs the object that is being fetched, and nothing else.
    #[test]
    fn failing_disk_costs_one_attempt() {
        for call in [Call::Create, Call::Write, Call::Sync, Call::Rename, Call::SyncDir] {
            for trouble in [Trouble::Eio(Landed::Nothing), Trouble::Enospc(Landed::Nothing)] {
                let mut rig = Rig::new(1 << 30, None).unwrap();
                rig.disk.plan(Fault { call: Some(call), nth: 2, lasting: false, trouble });
                for _ in 0..3 {
                    rig.run(|rig| {
                        let image = rig.disk.visible();
                        check_files(image.names(), |name| image.file(name)).map(drop)
                    })
                    .unwrap();
                    rig.now = rig.now.plus(HOUR);
                }
                assert_eq!(rig.whole().unwrap(), [0, 1, 2, 3], "{call:?} {trouble:?}");
                let files = rig.disk.list().unwrap();
                assert_eq!(files.len(), 4, "{call:?} {trouble:?}: {files:?}");
            }
        }
    }

    /// A file that was cut off, or that is missing, is fetched again.
    #[test]
    fn file_that_is_not_whole_is_not_used() {
        let mut rig = Rig::new(1 << 30, None).unwrap();
        rig.run(|_| Ok(())).unwrap();
        let names = rig.disk.list().unwrap();
        let mut names: Vec<_> = names.iter().filter(|name| name.ends_with(".object")).collect();
        names.sort();
        rig.disk.remove(names[1]).unwrap();
        rig.disk.remove(names[2]).unwrap();
        rig.disk.create(names[2]).unwrap().write_at(0, &[IoSlice::new(b"short")]).unwrap();
        for number in [1, 2] {
            let object = rig.segments.objects().holding(Index(number * 10 + 5)).unwrap().unwrap();
            let data = rig.segments.objects().open(&object).unwrap();
            assert_eq!(data.copy(0, OBJECT_BYTES).unwrap().unwrap(), bytes_of(number));
        }
        rig.run(|_| Ok(())).unwrap();
        assert_eq!(rig.whole().unwrap(), [0, 1, 2, 3]);
    }
}
