//! Discards of the log, as copies of a copy are told of them.

use crate::support::{
    SEGMENT, all, append, copied, copy, copy_of_files, feed, fill, follow_on, open, plain, reads, small,
};
use chiplog::follower::FollowFrom;
use chiplog::vault::MemoryVault;
use chiplog::{FollowerLog, Index, Log};
use std::sync::Arc;

/// A copy of a copy, which is told of nothing any more.
fn beside(dir: &std::path::Path, taken: &FollowerLog) -> FollowerLog {
    copy_of_files(dir, taken.log())
}

fn first_of(copy: &FollowerLog) -> u64 {
    copy.log().first_index().get()
}

fn follow_files(copy: &FollowerLog, log: &Log) {
    feed(copy, &mut log.follow(copy.resume_point().unwrap()).unwrap());
}

/// A copy that was restarted knew no more what the log had discarded, and was not told again: its own copies kept these records until the
/// next discard.
#[test]
fn restarted_copy_tells_its_copies_of_earlier_discards() {
    let [dir, one, two, three, four] = [(); 5].map(|()| tempfile::tempdir().unwrap());
    let logs = open(dir.path(), plain());
    append(&logs, &all(), 300);
    let log = copied(&logs);
    let taken = copy_of_files(one.path(), &log);
    let (behind, keeps) = (beside(two.path(), &taken), beside(three.path(), &taken));
    log.discard(Index(100)).unwrap();
    follow_files(&taken, &log);
    assert_eq!((first_of(&taken), first_of(&behind)), (100, 1));
    taken.close().unwrap();
    drop(taken);
    let taken = FollowerLog::open(one.path(), plain()).unwrap();
    assert_eq!(first_of(&taken), 100);
    append(&logs, &all(), 1);
    follow_files(&taken, &log);
    follow_files(&behind, taken.log());
    assert_eq!((first_of(&behind), behind.log().last_index()), (100, log.last_index()));
    // Records that the copy alone keeps no longer are not discarded from the log.
    taken.close().unwrap();
    drop(taken);
    let taken = FollowerLog::open(one.path(), plain().retention_bytes(2 * u64::from(SEGMENT))).unwrap();
    for _ in 0..60 {
        append(&logs, &all(), 50);
        follow_files(&taken, &log);
    }
    assert!(first_of(&taken) > 1000, "{}", first_of(&taken));
    taken.close().unwrap();
    drop(taken);
    let taken = FollowerLog::open(one.path(), plain()).unwrap();
    append(&logs, &all(), 1);
    follow_files(&taken, &log);
    let own = copy_of_files(four.path(), taken.log());
    assert!(first_of(&own) > 1000);
    follow_files(&keeps, &log);
    assert_eq!(first_of(&keeps), 100);
    append(&logs, &all(), 1);
    follow_files(&taken, &log);
    follow_files(&keeps, taken.log());
    assert_eq!((first_of(&keeps), keeps.log().last_index()), (100, log.last_index()));
}

/// A copy with objects is told with the objects, although no record follows.
#[test]
fn restarted_copy_with_objects_is_told_of_earlier_discards() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let logs = open(dir.path(), small(&vault));
    fill(&logs, dir.path(), 600);
    let log = copied(&logs);
    let (taken, _) = copy(one.path(), &log, FollowFrom::First, reads(&vault));
    let (behind, _) = copy(two.path(), taken.log(), FollowFrom::First, reads(&vault));
    log.discard(Index(100)).unwrap();
    follow_on(&taken, &log);
    assert_eq!((first_of(&taken), first_of(&behind)), (100, 1));
    taken.close().unwrap();
    drop(taken);
    let taken = FollowerLog::open(one.path(), reads(&vault)).unwrap();
    follow_on(&taken, &log);
    follow_on(&behind, taken.log());
    assert_eq!((first_of(&taken), first_of(&behind)), (100, 100));
}
