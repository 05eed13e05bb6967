//! Tests of which writes a sync covers, and of a failed sync.

use super::*;

#[test]
fn sync_covers_the_writes_before_it_began() {
    let mut rig = log_of(0);
    assert!(rig.store.begin_sync().is_none(), "nothing is written");
    rig.data(100);
    assert!(rig.store.begin_sync().is_none(), "nothing is written yet");
    rig.write();
    let job = rig.store.begin_sync().unwrap();
    rig.data(200);
    rig.write();
    assert!(rig.store.begin_sync().is_none(), "one at a time");
    let synced = rig.disk.calls(Some(Call::Sync));
    job.run().unwrap();
    assert_eq!(rig.disk.calls(Some(Call::Sync)), synced + 1);
    rig.store.end_sync(&job);
    // The next block says what is durable: the first entry, not the second.
    let second = rig.store.segments.snapshot()[0].data_end() as u32 - 320;
    rig.data(300);
    rig.sync();
    assert_eq!(rig.store.archive().header(EntryIndex(3)).unwrap().unwrap().durable_upto, second);
    rig.data(400);
    rig.sync();
    assert!(rig.store.archive().header(EntryIndex(4)).unwrap().unwrap().durable_upto > second);
    assert!(rig.store.begin_sync().is_none());
    rig.check();
}

#[test]
fn failed_sync_is_never_followed_by_another() {
    let mut rig = log_of(3);
    rig.data(100);
    rig.write();
    let trouble = Trouble::Eio(Landed::Nothing);
    rig.disk.plan(Fault { call: Some(Call::Sync), nth: 1, lasting: false, trouble });
    let error = rig.store.begin_sync().unwrap().run().unwrap_err();
    assert!(error.to_string().contains(&file_name(1)), "{error}");
    rig.data(100);
    rig.write();
    assert!(rig.store.begin_sync().is_none());
}
