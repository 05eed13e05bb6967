#![allow(clippy::unwrap_used, reason = "a test")]

use super::{Common, GROUPS_MAX, PROTOCOL, PeerOptions, PeerTransport, host};
use crate::wire::ids;
use crate::wire::proto::v1::HostRequest;
use chiplog::cluster::Member;
use chiplog::transport::Transport as _;
use chiplog::{DirectoryId, LogId, NodeId};
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

fn start() -> (Arc<PeerTransport>, Weak<Common>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let transport = PeerTransport::start(PeerOptions::new(NodeId(1), listener, "127.0.0.1:9")).unwrap();
    let common = Arc::downgrade(&transport.shared.common);
    (transport, common)
}

fn members() -> [Member; 2] {
    let member = |node: u64| Member::voter(NodeId(node), DirectoryId(node.into()), "127.0.0.1:9");
    [member(1), member(2)]
}

fn request(group: u32) -> HostRequest {
    let id = ids::to_bytes(5);
    HostRequest { protocol: PROTOCOL, cluster: id.clone(), from: 2, to: 1, group, log_id: id }
}

/// A group refers to the transport, which has the list of groups: a group that was made, or looked up for a caller,
/// while the transport was closed stayed there for good, and had links on threads that had ended.
#[test]
fn closed_transport_keeps_no_group_and_opens_no_link() {
    let (transport, common) = start();
    let held = common.upgrade().unwrap();
    let early = transport.group(1);
    early.members(&members());
    assert_eq!(early.traffic().len(), 1);
    transport.close();
    let late = transport.group(2);
    for group in [&early, &late] {
        group.members(&members());
        assert!(group.shared.read().links.is_empty());
    }
    transport.members(&members());
    assert!(transport.shared.read().links.is_empty());
    assert_eq!(held.links.load(Ordering::Relaxed), 0);
    let again = transport.clone();
    transport.on_host(Box::new(move |_, _| Ok(DirectoryId(again.local_addr().port().into()))));
    assert!(host::check(&held, &request(1)).is_err());
    assert!(held.groups.read().unwrap().is_empty());
    drop((transport, early, late, held));
    assert!(common.upgrade().is_none(), "something refers to the closed transport");
}

#[test]
fn dropped_transport_ends_its_groups() {
    let (transport, common) = start();
    let group = transport.group(1);
    group.members(&members());
    drop(transport);
    assert!(group.shared.read().links.is_empty());
    drop(group);
    assert!(common.upgrade().is_none(), "something refers to the dropped transport");
}

/// The callback of a server can hold its transport.
#[test]
fn closing_drops_the_callback() {
    let (transport, common) = start();
    let held = transport.clone();
    transport.on_host(Box::new(move |_, _| Ok(DirectoryId(held.local_addr().port().into()))));
    transport.close();
    drop(transport);
    assert!(common.upgrade().is_none(), "the callback holds the closed transport");
}

#[test]
fn calls_of_others_make_no_group() {
    let (transport, common) = start();
    let common = common.upgrade().unwrap();
    transport.identify(LogId(5), DirectoryId(1));
    transport.members(&members());
    for group in (1..100).chain([u32::MAX]) {
        assert_eq!(host::check(&common, &request(group)).is_ok(), group <= GROUPS_MAX + 1, "{group}");
        assert!(common.known_group(group).is_none());
    }
    assert_eq!(common.groups.read().unwrap().len(), 1, "the default log alone");
}
