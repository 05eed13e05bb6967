//! The directories of groups, and the calls of other servers about them.

#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use crate::connect::directory;
use crate::serve::size::Size;
use chiplog::{DirectoryId, LogId};
use chiplog_net::peer::PeerOptions;
use std::path::{Path, PathBuf};

/// A server's groups with its system log, which it leads. The default log is not needed for that.
pub(super) fn with_system(data: &Path) -> Groups {
    let groups = over(data, &[]).unwrap();
    let system = groups.start(SYSTEM, Bootstrap::Init).unwrap();
    groups.serve(SYSTEM, &system).unwrap();
    let begun = Instant::now();
    while system.role() != Role::Leader {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not lead");
        std::thread::sleep(Duration::from_millis(10));
    }
    groups
}

/// A server's groups, none of them open.
pub(super) fn over(data: &Path, directories: &[PathBuf]) -> chiplog::Result<Groups> {
    let mut config = Config { node: 1, groups: 1, data: data.to_owned(), ..Config::default() };
    config.group_directories = directories.to_owned();
    config.log.segment_bytes = Some(Size(1 << 20));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let address: Address = format!("{at} {at}").parse().unwrap();
    let options = PeerOptions::new(NodeId(1), listener, address.to_string());
    Groups::new(config, None, &address, PeerTransport::start(options).unwrap(), LogSlot::new())
}

/// The answer of a server that is asked for a replica until it has made it, or could not.
pub(super) fn asked_to_host(groups: &Groups, group: u32, log: LogId) -> chiplog::Result<DirectoryId> {
    let begun = Instant::now();
    loop {
        match groups.host(group, log) {
            Err(error) if error.to_string().contains("still being made") => {
                assert!(begun.elapsed() < Duration::from_secs(60), "{error}");
                std::thread::sleep(Duration::from_millis(10));
            }
            answer => return answer,
        }
    }
}

fn aside(groups: &Groups, group: u32) -> bool {
    groups.path(group).with_extension("unused-1").exists()
}

/// A server whose catalogue was behind after a restart renamed a group's directory, with all of its records, because
/// a caller named another log.
#[test]
fn caller_cannot_have_a_directory_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let groups = with_system(dir.path());
    let log = groups.start(1, Bootstrap::Init).unwrap();
    let (id, directory) = (log.log_id(), log.directory_id());
    log.close().unwrap();
    drop(log);
    let behind = groups.host(1, LogId(7)).unwrap_err();
    assert_eq!(behind.kind(), ErrorKind::Unavailable, "{behind}");
    assert!(!aside(&groups, 1));

    let log = groups.start_existing(1, id).unwrap().unwrap();
    groups.inner.slot.named().unwrap().register_group(1, &log).unwrap();
    log.close().unwrap();
    drop(log);
    let wrong = groups.host(1, LogId(7)).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Diverged, "{wrong}");
    assert!(!aside(&groups, 1));
    assert_eq!(asked_to_host(&groups, 1, id).unwrap(), directory);
    let hosted = groups.hosted(1);
    assert_eq!(groups.host(1, id).unwrap(), directory, "again");
    assert!(groups.hosted(1) > hosted, "the leader may add it now: it is not removed for an earlier answer");
}

#[test]
fn directory_of_another_log_is_set_aside_for_that_of_the_catalogue() {
    let dir = tempfile::tempdir().unwrap();
    let groups = with_system(dir.path());
    let other = with_system(&dir.path().join("other"));
    let registered = other.start(1, Bootstrap::Init).unwrap();
    groups.inner.slot.named().unwrap().register_group(1, &registered).unwrap();
    let unused = groups.start(1, Bootstrap::Init).unwrap();
    assert_ne!(unused.log_id(), registered.log_id());
    unused.close().unwrap();
    drop(unused);
    asked_to_host(&groups, 1, registered.log_id()).unwrap();
    assert!(aside(&groups, 1));
    assert_eq!(groups.replicas()[1].log_id(), registered.log_id());
}

#[test]
fn replica_opened_during_a_shutdown_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let groups = with_system(dir.path());
    groups.inner.slot.drain();
    assert_eq!(groups.start(1, Bootstrap::Init).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(groups.host(1, LogId(7)).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(groups.replicas().len(), 1);
}

/// The only system log of a cluster was renamed, with the remark that it could be removed.
#[test]
fn system_log_is_not_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let groups = with_system(dir.path());
    groups.replicas()[0].close().unwrap();
    let Inner { config, address, transport, .. } = &*groups.inner;
    let waiting =
        Groups::over(config.clone(), None, address.clone(), transport.clone(), LogSlot::new()).unwrap();
    drop(groups);
    assert_eq!(waiting.host(SYSTEM, LogId(7)).unwrap_err().kind(), ErrorKind::Diverged);
    assert!(directory::is_log(&waiting.path(SYSTEM)) && !aside(&waiting, SYSTEM));
}
