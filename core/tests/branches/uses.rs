//! The contents of branches, the objects that they read and keep, and the replicas and copies that use them.

use crate::place::{Place, SEGMENT, append, bytes_in, check, eventually, record, record_of, stored, upto};
use chiplog::backup::{Backup, Branch, BranchOptions, Inventory, Pin, RestoreOptions, RestoreTo};
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::follower::{FollowFrom, FollowMessage};
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{
    ErrorKind, FollowerLog, Index, Log, Logs, LogsOptions, NodeId, Options, ReadOnlyLog, Start, Timestamp,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn branch_reads_its_parents_objects_and_continues_on_its_own() {
    let place = Place::new();
    let parent = place.parent();
    let id = parent.log_id();
    let made = Branch::make(&*place.vault, id, place.path("branch"), &BranchOptions::default()).unwrap();
    assert_ne!(made.log_id, id);
    assert_eq!((made.first, made.last), (Index(1), Index(2000)));
    let of = Branch::of(&*place.vault, made.log_id).unwrap().unwrap();
    let newest = *place.objects(id).last().unwrap();
    assert!(of.parts.len() == 1 && of.parts[0].log_id == id && of.parts[0].first_object == 0, "{of:?}");
    assert_eq!((of.parts[0].last_object, of.missing(&*place.vault).unwrap()), (newest - 1, 0));
    assert_eq!(Branch::of(&*place.vault, id).unwrap(), None);
    let pin = &Pin::list(&*place.vault, id).unwrap()[0];
    assert_eq!((pin.branch(), pin.first_object, pin.last_object), (Some(made.log_id), 0, newest - 1));
    assert_eq!((pin.first, pin.missing(&*place.vault, id).unwrap()), (Index(1), 0));

    let branch = place.open("branch");
    check(&branch, 1, 2000, record);
    // Both go on, and neither sees the other.
    append(&parent, 500, record);
    append(&branch, 500, |n| record_of(1, n));
    let mixed = |n| if n <= 2000 { record(n) } else { record_of(1, n) };
    place.store(&branch);
    place.store(&parent);
    assert!(place.objects(made.log_id).first() == Some(&newest), "{:?}", place.objects(made.log_id));
    check(&branch, 1, 2500, mixed);
    check(&parent, 1, 2500, record);
    branch.close().unwrap();
    // Without the store its records there are not called discarded, and waiting does not bring them.
    let alone = Log::open(place.path("branch"), Options::with_segment_bytes(SEGMENT)).unwrap();
    let error = alone.read(Index(1)).unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.is_lasting(), "{error}");
    alone.close().unwrap();
    let files = ReadOnlyLog::open(place.path("branch")).unwrap();
    let last = files.first_index().previous();
    assert!(
        last > Index(1) && files.in_object_store() == Some((Index(1), last)),
        "{:?}",
        files.in_object_store()
    );
    let error = files.read(last).unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.is_lasting(), "{error}");
    assert_eq!(files.read(last.next()).unwrap().index, last.next());
    let error = files.read(Index(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Discarded, "{error}");
    let branch = place.open("branch");
    check(&branch, 1, 2500, mixed);
    // It is in the object store as a whole.
    check(&place.fetched(made.log_id, "again"), 1, 2500, mixed);
    check(&place.fetched(id, "parent-again"), 1, 2500, record);
    let pin = Pin::make(&*place.vault, made.log_id, "all", None).unwrap();
    assert_eq!((pin.first_object, pin.first, pin.last), (0, Index(1), Index(2500)));
    let backup = Backup::fetch_pin(&*place.vault, made.log_id, "all", place.path("pinned"), &mut |_, _| {});
    assert_eq!(backup.unwrap().info().last, Index(2500));
    assert_eq!(Inventory::take(&*place.vault, made.log_id).unwrap().unknown.objects, 0);
}

#[test]
fn branch_ends_with_the_record_or_the_time_that_was_asked_for() {
    let place = Place::new();
    let parent = place.parent();
    let id = parent.log_id();
    let objects = place.objects(id).len() as u64;
    let mut seen = BTreeSet::new();
    for to in [1_u64, 130, 131, 132, 133, 134, 800, 1333, 1999, 2000] {
        let name = format!("to-{to}");
        let branch = place.branch(id, &name, RestoreTo::Index(Index(to)));
        check(&branch, 1, to, record);
        let of = Branch::of(&*place.vault, branch.log_id()).unwrap();
        seen.insert(of.map_or(0, |of| of.parts[0].last_object + 1));
        append(&branch, 300, |n| record_of(9, n));
        place.store(&branch);
        let mixed = |n| if n <= to { record(n) } else { record_of(9, n) };
        check(&branch, 1, to + 300, mixed);
        check(&place.fetched(branch.log_id(), &format!("{name}-again")), 1, to + 300, mixed);
        branch.close().unwrap();
    }
    assert!(seen.contains(&0) && seen.contains(&1) && seen.contains(&(objects - 1)), "{seen:?}");
    // The time of a record: that record is in it, and none that is later.
    let time = parent.read(Index(1100)).unwrap().timestamp;
    let branch = place.branch(id, "time", RestoreTo::Timestamp(time));
    assert!(branch.last_index() >= Index(1100));
    assert_eq!(branch.read(branch.last_index()).unwrap().timestamp, time);
    if let Ok(next) = parent.read(branch.last_index().next()) {
        assert!(next.timestamp > time);
    }
    check(&branch, 1, branch.last_index().get(), record);
    // An end that the objects do not have is refused, and leaves nothing.
    let pins = place.pins(id).len();
    for (to, kind) in [
        (RestoreTo::Index(Index(2001)), ErrorKind::OutOfRange),
        (RestoreTo::Index(Index(0)), ErrorKind::Discarded),
        (RestoreTo::Timestamp(Timestamp(1)), ErrorKind::OutOfRange),
    ] {
        let options = BranchOptions::default().to(to);
        let error = Branch::make(&*place.vault, id, place.path("none"), &options).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    assert!(!place.path("none").exists() && !place.path("none.restoring").exists());
    assert_eq!(place.pins(id).len(), pins);
    let error = Branch::make(&*place.vault, id, place.path("time"), &BranchOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

/// Sessions, options and discards are those at the branch's end, as in a log that is restored up to there.
#[test]
fn branch_has_the_state_at_its_end() {
    let place = Place::new();
    let parent = place.parent();
    let id = parent.log_id();
    parent.discard(Index(400)).unwrap();
    let mut session = parent.open_session().unwrap();
    let kept = session.append(b"in a session").unwrap();
    append(&parent, 200, record);
    let end = parent.last_index();
    session.append(b"after the end").unwrap();
    parent.discard(Index(700)).unwrap();
    append(&parent, 200, record);
    place.store(&parent);

    let branch = place.branch(id, "branch", RestoreTo::Index(end));
    let backup = Backup::fetch(&*place.vault, id, place.path("backup"), &mut |_, _| {}).unwrap();
    let upto = RestoreOptions::default().to(RestoreTo::Index(end));
    backup.restore(place.path("restored"), &upto, &mut |_, _| {}).unwrap();
    let restored = Log::open(place.path("restored"), Options::with_segment_bytes(SEGMENT)).unwrap();
    assert_eq!((branch.last_index(), branch.log_options()), (restored.last_index(), restored.log_options()));
    assert_eq!(branch.status().sessions, restored.status().sessions);
    assert!(branch.first_index() >= Index(400) && branch.first_index() <= Index(700));
    assert_eq!(branch.read(Index(300)).unwrap_err().kind(), ErrorKind::Discarded);
    // The session goes on where it was at the end.
    let last = session.next_sequence().get() - 1;
    let mut again = branch.resume_session(session.id(), chiplog::Sequence(last - 1));
    assert_eq!(again.append(b"in a session").unwrap(), kept);
    assert_eq!(again.append(b"another one").unwrap(), end.next());
    for n in branch.first_index().get()..end.get() {
        assert_eq!(
            branch.read(Index(n)).unwrap().data,
            restored.read(Index(n)).map_or_else(|_| record(n).into(), |r| r.data)
        );
    }
}

#[test]
fn parent_keeps_what_a_branch_reads_and_the_branch_lets_it_go() {
    let place = Place::new();
    let parent = place.parent();
    let id = parent.log_id();
    let branch = place.branch(id, "branch", RestoreTo::Index(Index(1000)));
    let of = Branch::of(&*place.vault, branch.log_id()).unwrap().unwrap();
    let last = of.parts[0].last_object;
    parent.discard(Index(2000)).unwrap();
    eventually("the parent deletes", || !place.objects(id).contains(&(last + 1)));
    assert_eq!(place.objects(id).range(..=last).count() as u64, last + 1);
    check(&branch, 1, 1000, record);
    // While there is a branch, neither its pin nor its parent can be removed.
    let pin = place.pins(id).remove(0);
    let error = Pin::remove(&*place.vault, id, &pin).unwrap_err();
    assert!(error.kind() == ErrorKind::Busy && error.to_string().contains("branch"), "{error}");
    assert_eq!(Inventory::delete_log(&*place.vault, id).unwrap_err().kind(), ErrorKind::Busy);
    let error = Pin::make(&*place.vault, id, &pin, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");

    // A discard in the middle lets nothing go, and the last one everything.
    append(&branch, 1000, |n| record_of(1, n));
    place.store(&branch);
    branch.discard(Index(500)).unwrap();
    append(&branch, 100, |n| record_of(1, n));
    eventually("the begin is told", || {
        place.names(branch.log_id()).iter().any(|name| name.contains("/begin/"))
    });
    assert_eq!(place.pins(id), std::slice::from_ref(&pin));
    // A pin of the branch keeps its ancestors' objects, too.
    let own = Pin::make(&*place.vault, branch.log_id(), "mine", None).unwrap();
    assert!(own.first_object <= last);
    branch.discard(Index(1500)).unwrap();
    append(&branch, 100, |n| record_of(1, n));
    eventually("the branch deletes", || {
        let begin = Inventory::take(&*place.vault, branch.log_id()).unwrap().begin;
        begin > last + 1
    });
    assert_eq!((place.pins(id), own.missing(&*place.vault, branch.log_id()).unwrap()), (vec![pin], 0));
    Pin::remove(&*place.vault, branch.log_id(), "mine").unwrap();
    Inventory::take(&*place.vault, branch.log_id()).unwrap().delete_unneeded(&*place.vault).unwrap();
    assert!(place.pins(id).is_empty());
    assert!(Branch::of(&*place.vault, branch.log_id()).unwrap().unwrap().parts.is_empty());
    let mixed = |n| if n <= 1000 { record(n) } else { record_of(1, n) };
    check(&branch, 1500, 2200, mixed);
    place.store(&branch);
    check(&place.fetched(branch.log_id(), "again"), 1500, 2200, mixed);
    // Now the parent can go, and the branch does not notice.
    Inventory::delete_log(&*place.vault, id).unwrap();
    drop((parent, branch));
    check(&place.open("branch"), 1500, 2200, mixed);
}

/// The leader of the branch removes the pin by itself.
#[test]
fn discard_of_all_inherited_records_removes_the_pin() {
    let place = Place::new();
    let parent = place.parent();
    let branch = place.branch(parent.log_id(), "branch", RestoreTo::Index(Index(1000)));
    append(&branch, 500, record);
    place.store(&branch);
    branch.discard(Index(1200)).unwrap();
    eventually("the pin goes", || place.pins(parent.log_id()).is_empty());
    assert_eq!(Branch::of(&*place.vault, parent.log_id()).unwrap(), None);
    check(&branch, 1200, 1500, record);
}

#[test]
fn branches_of_branches_read_the_objects_of_all_ancestors() {
    let place = Place::new();
    let parent = place.parent();
    let one = place.branch(parent.log_id(), "one", RestoreTo::Index(Index(1000)));
    append(&one, 1000, |n| record_of(1, n));
    place.store(&one);
    let two = place.branch(one.log_id(), "two", RestoreTo::Index(Index(1700)));
    append(&two, 500, |n| record_of(2, n));
    place.store(&two);
    // One that ends before the first branch begins is one of the first log alone, and so is one of a branch without own objects.
    let early = place.branch(two.log_id(), "early", RestoreTo::Index(Index(600)));
    let of = |log: &Log| Branch::of(&*place.vault, log.log_id()).unwrap().unwrap();
    let owners = |log: &Log| of(log).parts.iter().map(|part| part.log_id).collect::<Vec<_>>();
    assert_eq!(owners(&early), [parent.log_id()]);
    assert_eq!(owners(&two), [parent.log_id(), one.log_id()]);
    let fresh = place.branch(early.log_id(), "fresh", RestoreTo::End);
    assert_eq!(owners(&fresh), [parent.log_id()]);
    assert!(fresh.last_index() < Index(600));
    check(&fresh, 1, fresh.last_index().get(), record);
    assert_eq!((place.pins(parent.log_id()).len(), place.pins(one.log_id()).len()), (4, 1));

    // Its ancestors discard everything, and are away.
    parent.discard(parent.last_index()).unwrap();
    one.discard(one.last_index()).unwrap();
    eventually("the pin of the first branch goes", || place.pins(parent.log_id()).len() == 3);
    drop((parent, one));
    let of_two = |n| match n {
        ..=1000 => record(n),
        1001..=1700 => record_of(1, n),
        _ => record_of(2, n),
    };
    check(&two, 1, 2200, of_two);
    check(&early, 1, 600, record);
    check(&place.fetched(two.log_id(), "again"), 1, 2200, of_two);
    // The records behind the objects of a branch are on its disk alone.
    let id = fresh.log_id();
    check(&place.fetched(id, "fresh-again"), 1, fresh.last_index().get(), record);
    let early = place.fetched(early.log_id(), "early-again");
    check(&early, 1, fresh.last_index().get(), record);
}

#[test]
fn branch_can_be_made_of_a_pin() {
    let place = Place::new();
    let parent = place.parent();
    let id = parent.log_id();
    Pin::make(&*place.vault, id, "old", Some(Index(900))).unwrap();
    parent.discard(Index(1900)).unwrap();
    eventually("the parent deletes", || !place.objects(id).contains(&9));
    let options = BranchOptions::default().pin(Some("old".to_owned()));
    let made = Branch::make(&*place.vault, id, place.path("branch"), &options).unwrap();
    assert!(made.first == Index(1) && made.last >= Index(900), "{made:?}");
    Pin::remove(&*place.vault, id, "old").unwrap();
    Inventory::take(&*place.vault, id).unwrap().delete_unneeded(&*place.vault).unwrap();
    check(&place.open("branch"), 1, made.last.get(), record);
    let options = BranchOptions::default().pin(Some("no-such".to_owned()));
    let error = Branch::make(&*place.vault, id, place.path("none"), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let options = BranchOptions::default().to(RestoreTo::Index(Index(900)));
    let error = Branch::make(&*place.vault, id, place.path("none"), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Discarded, "{error}");
}

#[test]
fn branch_without_its_object_store_says_what_it_lacks() {
    let place = Place::new();
    let parent = place.parent();
    let branch = place.branch(parent.log_id(), "branch", RestoreTo::End);
    let (id, first_local) = (branch.log_id(), Index(1990));
    branch.close().unwrap();
    let log = Log::open(place.path("branch"), Options::with_segment_bytes(SEGMENT)).unwrap();
    let error = log.read(Index(1)).unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("object store"), "{error}");
    assert_eq!(log.read(first_local).unwrap().data, record(1990));
    log.close().unwrap();
    // Another location is not taken for this one, and nothing is stored there.
    let other = Arc::new(MemoryVault::default());
    let log =
        Log::open(place.path("branch"), place.options().vault(other.clone() as Arc<dyn Vault>)).unwrap();
    let error = log.read(Index(1)).unwrap_err();
    let root = format!("{:032x}/root", parent.log_id().get());
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains(&root), "{error}");
    append(&log, 500, record);
    eventually("it has tried", || log.metrics().object_failures > 0);
    assert!(other.list("").unwrap().is_empty());
    log.close().unwrap();
    let log = place.open("branch");
    assert_eq!(log.log_id(), id);
    check(&log, 1, 2500, record);
}

/// Damage in an object of the parent is found, and named; the branch does not write to the parent.
#[test]
fn branch_leaves_damaged_objects_of_its_parent_alone() {
    let place = Place::new();
    let parent = place.parent();
    let id = parent.log_id();
    parent.close().unwrap();
    Branch::make(&*place.vault, id, place.path("branch"), &BranchOptions::default()).unwrap();
    let names = place.names(id);
    let name = names.iter().find(|name| name.ends_with("/o/00000000000000000002")).unwrap();
    let size = place.vault.size(name).unwrap().unwrap();
    let whole = place.vault.get(name, 0..size).unwrap();
    let mut damaged = whole.to_vec();
    damaged[20_000] ^= 1;
    place.vault.put(name, &[damaged.clone().into()]).unwrap();
    let options = place.options().object_scrub(Some(Duration::from_millis(200)));
    let branch = Log::open(place.path("branch"), options).unwrap();
    eventually("the damage is found", || branch.metrics().damaged_objects == 1);
    let mut reader = branch.reader(Start::First).unwrap();
    let error = loop {
        match reader.next_record() {
            Ok(record) => assert!(record.is_some(), "the damage was passed over"),
            Err(error) => break error,
        }
    };
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(name.as_str()), "{error}");
    assert_eq!(branch.metrics().repaired_objects, 0);
    assert_eq!(place.vault.get(name, 0..size).unwrap(), damaged);
    // The parent has it in its files, and stores it again.
    let options = place.options().object_scrub(Some(Duration::from_millis(200)));
    let parent = Log::open(place.path("parent"), options).unwrap();
    eventually("the parent repairs it", || place.vault.get(name, 0..size).unwrap() == whole);
    eventually("the branch sees it", || branch.metrics().damaged_objects == 0);
    check(&branch, 1, 2000, record);
    drop(parent);
}

/// The size of the log does not matter.
#[test]
fn branch_copies_less_than_two_objects() {
    let place = Place::new();
    let parent = place.parent();
    Branch::make(&*place.vault, parent.log_id(), place.path("branch"), &BranchOptions::default()).unwrap();
    let bytes = bytes_in(&place.path("branch"));
    // Three segments of 1 MiB, and the file that says which log it is.
    assert!(bytes <= (3 << 20) + 4096, "{bytes} bytes");
}

/// A build that does not know branches refuses the log's files as of a newer format.
#[test]
fn files_of_a_branch_are_of_version_4() {
    let (place, id, _) = stored();
    Branch::make(&*place.vault, id, place.path("branch"), &upto(1950)).unwrap();
    let first = std::fs::read_dir(place.path("branch")).unwrap().map(|entry| entry.unwrap().path());
    let first = first.filter(|path| path.extension().is_some_and(|e| e == "seg")).min().unwrap();
    let bytes = std::fs::read(first).unwrap();
    assert_eq!(bytes[16..20], 4_u32.to_le_bytes());
}

/// Slices of a branch continue the state in which it began, until it has an object of its own.
#[test]
fn slices_continue_a_branch_without_own_objects() {
    let place = Place::new();
    let parent = place.parent();
    let made = Branch::make(&*place.vault, parent.log_id(), place.path("branch"), &upto(1000)).unwrap();
    let options = place.options().slice_interval(Some(Duration::from_millis(10)));
    let branch = Log::open(place.path("branch"), options).unwrap();
    append(&branch, 30, |n| record_of(1, n));
    eventually("all is in slices", || branch.metrics().sliced_index >= 1030);
    let id = made.log_id;
    assert!(place.objects(id).is_empty(), "{:?}", place.objects(id));
    let mixed = |n| if n <= 1000 { record(n) } else { record_of(1, n) };
    check(&place.fetched(id, "again"), 1, 1030, mixed);
    let found = Backup::slices_in(&*place.vault, id, &mut |_| {}).unwrap();
    assert!(found.faults.is_empty() && found.last == Some(Index(1030)), "{found:?}");
    append(&branch, 300, |n| record_of(1, n));
    place.store(&branch);
    eventually("all is in slices", || branch.metrics().sliced_index >= 1330);
    check(&place.fetched(id, "with-objects"), 1, 1330, mixed);
}

/// A branch becomes a cluster: a replica that joins reads the parent's objects, too, and leads.
#[test]
fn replicas_that_join_a_branch_read_the_parents_objects() {
    let place = Place::new();
    let parent = place.parent();
    Branch::make(&*place.vault, parent.log_id(), place.path("one"), &upto(1000)).unwrap();
    let network = MemoryNetwork::new();
    let open = |name: &str, node: u64, bootstrap| {
        let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
        cluster.heartbeat = Duration::from_millis(20);
        cluster.election_timeout = Duration::from_secs(1);
        cluster.slow_disk_sync = None;
        Log::open(place.path(name), place.options().cluster(cluster)).unwrap()
    };
    let one = open("one", 1, Bootstrap::Existing);
    eventually("it leads", || one.role() == Role::Leader);
    // Its own objects go to the object store, and its files away: the other one cannot have the old records from here.
    append(&one, 1000, |n| record_of(1, n));
    place.store(&one);
    let two = open("two", 2, Bootstrap::Join(one.log_id()));
    let (node, directory) = (NodeId(2), two.directory_id());
    let add = Change::AddLearner { node, directory, address: "memory:2".to_owned() };
    one.change_members(&[add], Duration::from_secs(30)).unwrap();
    one.change_members(&[Change::Promote(node)], Duration::from_secs(30)).unwrap();
    eventually("it has all", || two.last_index() == one.last_index());
    let mixed = |n| if n <= 1000 { record(n) } else { record_of(1, n) };
    check(&two, 1, 2000, mixed);
    one.transfer_leader(NodeId(2), Duration::from_secs(30)).unwrap();
    eventually("it leads", || two.role() == Role::Leader);
    append(&two, 500, |n| record_of(1, n));
    place.store(&two);
    two.discard(Index(1500)).unwrap();
    append(&two, 100, |n| record_of(1, n));
    eventually("it removes the pin", || place.pins(parent.log_id()).is_empty());
    eventually("both have discarded", || one.first_index() == Index(1500) && one.last_index() == Index(2600));
    check(&one, 1500, 2600, mixed);
}

/// A copy that reads objects reads those of the parent, too.
#[test]
fn copies_of_a_branch_read_the_parents_objects() {
    let place = Place::new();
    let parent = place.parent();
    let branch = place.branch(parent.log_id(), "branch", RestoreTo::Index(Index(1000)));
    append(&branch, 200, |n| record_of(1, n));
    let mut feed = branch.follow(FollowFrom::Newest).unwrap();
    let Some(FollowMessage::State(state)) = feed.next(1 << 20).unwrap() else { panic!("no state") };
    let copy = FollowerLog::create(place.path("copy"), place.options(), &state).unwrap();
    append(&branch, 200, |n| record_of(1, n));
    while let Some(fed) = feed.next(1 << 20).unwrap() {
        copy.apply(fed).unwrap();
    }
    let log = copy.log();
    assert_eq!((log.first_index(), log.last_index()), (Index(1), Index(1400)));
    assert_eq!(log.read(Index(1)).unwrap().data, record(1));
    assert_eq!(log.read(Index(700)).unwrap().data, record(700));
    let root = |log: &Log| format!("{:032x}/root", log.log_id().get());
    let object = |log: &Log, n: u64| format!("{:032x}/o/{n:020}", log.log_id().get());
    let last = Branch::of(&*place.vault, branch.log_id()).unwrap().unwrap().parts[0].last_object;
    for (name, is_read) in [
        (root(&branch), true),
        (object(&branch, 99), true),
        (root(&parent), true),
        (object(&parent, last), true),
        (object(&parent, last + 1), false),
        (format!("{:032x}/pin/x", parent.log_id().get()), false),
        ("00000000000000000000000000000007/root".to_owned(), false),
    ] {
        assert_eq!(branch.reads_object(&name), is_read, "{name}");
    }
    assert!(!parent.reads_object(&root(&branch)));
}

/// Groups of named logs are refused, and nothing is left.
#[test]
fn branches_of_shared_groups_are_refused() {
    let place = Place::new();
    let options = LogsOptions::default().groups(1).options(place.options());
    let logs = Logs::open(place.path("logs"), options).unwrap();
    let log = logs.create("orders").unwrap();
    append(&log, 2000, record);
    let groups = || {
        let ids = Backup::logs_in(&*place.vault).unwrap();
        ids.into_iter().filter(|id| place.objects(*id).len() >= 3).collect::<Vec<_>>()
    };
    eventually("its group has objects", || !groups().is_empty());
    logs.close().unwrap();
    drop((log, logs));
    eventually("no object is being stored any more", || Arc::strong_count(&place.vault) == 1);
    let before = place.vault.list("").unwrap();
    for id in groups() {
        let error =
            Branch::make(&*place.vault, id, place.path("none"), &BranchOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    assert_eq!(place.vault.list("").unwrap(), before);
    assert!(!place.path("none").exists() && !place.path("none.restoring").exists());
}
