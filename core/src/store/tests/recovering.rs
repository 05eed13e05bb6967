//! Recovery of logs that another process writes, or that are damaged before their last segment.

use super::*;
use crate::store::format::geometry::FOOTER_BYTES;
use std::io::IoSlice;

/// Learns while another process writes.
struct Beside<'a> {
    learnt: Learnt,
    write: &'a dyn Fn(),
}

impl Learn for Beside<'_> {
    fn learn(&mut self, header: &BlockHeader, body: &[u8]) -> Result<Base, Malformed> {
        (self.write)();
        self.learnt.learn(header, body)
    }

    fn first(&self) -> Index {
        self.learnt.first()
    }

    fn commit_to(&mut self, raft: EntryIndex) {
        self.learnt.commit_to(raft);
    }

    fn commit(&self) -> EntryIndex {
        self.learnt.commit()
    }

    fn fresh_learner(&self) -> Box<dyn Learn + '_> {
        self.learnt.fresh_learner()
    }
}

/// A read-only log read a position before the writer wrote it, and then a later block that proves it durable.
#[test]
fn place_that_was_written_meanwhile_is_looked_at_again() {
    let mut rig = log_of(1);
    let from = rig.store.end().0;
    rig.data(2000);
    rig.sync();
    let to = rig.store.end().0;
    rig.data(2000);
    rig.sync();
    let name = file_name(1);
    let block = rig.disk.visible().file(&name).unwrap()[from..to].to_vec();
    let nothing = vec![0; block.len()];
    let write = |bytes: &[u8]| {
        rig.disk.open(&name, true).unwrap().write_at(from as u64, &[IoSlice::new(bytes)]).unwrap();
    };
    write(&nothing);
    let look = |written: &[u8]| {
        let mut beside = Beside { learnt: Learnt::default(), write: &|| write(written) };
        survey(&rig.disk, identity(), &mut beside).map(|_| beside.learnt.end)
    };
    assert_eq!(look(&nothing).unwrap_err().kind(), ErrorKind::Corrupt, "real damage is still an error");
    assert_eq!(look(&block).unwrap(), rig.end());
}

/// One error names the damaged file, the other one the missing file.
#[test]
fn damaged_segment_is_told_from_a_missing_one() {
    let rig = log_of(100);
    rig.store.allocator.help();
    let list = rig.store.segments.snapshot();
    assert!(list.len() > 2);
    let before = file_name(list.last().unwrap().number - 1);
    let footer = SEGMENT_BYTES as usize - FOOTER_BYTES;
    let said = |harm: &dyn Fn(&SimDisk)| {
        let disk = SimDisk::new(rig.disk.visible());
        harm(&disk);
        let error = reopen(&disk).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(&before), "{error}");
        error.to_string().contains("the file is missing")
    };
    assert!(!said(&|disk| {
        for byte in [footer + 8, 20_000] {
            assert!(disk.damage(&before, &Damage::FlipBit { bit: byte as u64 * 8 }));
        }
    }));
    assert!(said(&|disk| disk.remove(&before).unwrap()));
}

/// After a failed sync, the page cache may show bytes that are not on the disk.
#[test]
fn unproven_end_is_synced_before_anything_else_happens() {
    let rig = log_of(1);
    let disk = SimDisk::new(rig.disk.visible());
    let mut found = survey(&disk, identity(), &mut Learnt::default()).unwrap();
    let before = disk.calls(Some(Call::Sync));
    drop(repair(&disk, &mut found).unwrap());
    assert_eq!(disk.calls(Some(Call::Sync)), before + 1);
}

/// Two jumps removed a run of files, and the removals became durable in another order: the first file is there again, the next one is not.
/// The opening of the last one was damaged. It counted as a file that was never begun, because the number below it was missing: the log
/// opened as it was before the jumps.
#[test]
fn damaged_opening_behind_missing_numbers_is_an_error() {
    let mut rig = log_of(1);
    let old = rig.disk.visible();
    let number = rig.store.segments.newest().unwrap().number;
    for raft in [1000, 2000] {
        rig.roll(Base { raft: EntryIndex(raft), term: Term(1), next: Index(raft) });
        rig.sync();
        for _ in 0..3 {
            rig.data(2000);
            rig.sync();
        }
    }
    rig.store.allocator.help();
    let last = rig.store.segments.newest().unwrap().number;
    assert!(last >= number + 2);
    let begins = |disk: &SimDisk| reopen(disk).map(|(_, learnt)| learnt.base.raft);
    let mut image = rig.disk.visible();
    for number in number..last {
        image.remove(&file_name(number));
    }
    image.insert(&file_name(number), &old.file(&file_name(number)).unwrap());
    assert_eq!(begins(&SimDisk::new(image.clone())).unwrap(), EntryIndex(2000), "the old file is dead");
    let opening = Damage::FlipBit { bit: (SEGMENT_HEADER_BYTES as u64 + 20) * 8 };
    assert!(image.damage(&file_name(last), &opening));
    let error = begins(&SimDisk::new(image.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let (path, at) = error.location().unwrap();
    assert_eq!((path.file_name().unwrap().to_str().unwrap(), at), (&*file_name(last), 4096), "{error}");
    // A file that was begun and never synced has nothing that proves it.
    let file = image.file(&file_name(last)).unwrap();
    let torn = SimDisk::new(image);
    let rest = vec![0; file.len() - SEGMENT_HEADER_BYTES - BLOCK_HEADER_BYTES];
    let from = (SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES) as u64;
    torn.open(&file_name(last), true).unwrap().write_at(from, &[IoSlice::new(&rest)]).unwrap();
    assert_eq!(begins(&torn).unwrap(), EntryIndex(0));
}
