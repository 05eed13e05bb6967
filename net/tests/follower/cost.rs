//! The cost of copies for their servers, and slow copies.

use crate::served::{One, Trio};
use crate::support::{LONG, append, follow, quick, same, until};
use chiplog::{Options, Start};
use chiplog_net::follower::Follower;
use chiplog_net::service::log::NativeOptions;
use chiplog_net::wire::proto::v1::FollowRequest;
use chiplog_net::wire::proto::v1::follow_client::FollowClient;
use chiplog_net::wire::proto::v1::follow_request::Start as Asked;
use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Copies use replicas that do not lead, ask others for their position, and leave the leader alone.
#[test]
fn many_copies_do_not_use_the_leader() {
    const COPIES: u64 = 8;
    let trio = Trio::new();
    let leader = trio.leader(0);
    let dirs: Vec<_> = (0..COPIES).map(|_| tempfile::tempdir().unwrap()).collect();
    let mut options = quick();
    options.files = Options::with_segment_bytes(1 << 20);
    let open = |dir: &tempfile::TempDir| {
        Follower::open(dir.path(), trio.addresses(), Start::First, options.clone()).unwrap()
    };
    let copies: Vec<_> = dirs.iter().map(open).collect();
    let calls = |node: u64| trio.server(node).calls.load(Ordering::Relaxed);
    let others = (1..=3).filter(|n| *n != leader);
    until("another server feeds each of them", || {
        others.clone().map(|n| trio.server(n).host.copies().now).sum::<u64>() == COPIES
    });
    let before = calls(leader);
    assert!(before <= 2 * COPIES, "each asked it once about itself: {before}");
    let others_before: u64 = others.clone().map(calls).sum();
    let last = append(trio.log(leader), 2_000, 100);
    copies.iter().for_each(|copy| copy.wait_for(last, LONG).unwrap());
    until("each copy has asked some server for its position several times", || {
        others.clone().map(calls).sum::<u64>() > others_before + 4 * COPIES
    });
    assert_eq!(calls(leader), before);
    assert_eq!(trio.server(leader).host.copies().begun, 0);
    let fed: u64 = others.map(|n| trio.server(n).host.copies().now).sum();
    assert_eq!(fed, COPIES);
}

/// A copy that does not read its stream costs its server one window, and costs other clients nothing.
#[test]
fn slow_copy_does_not_use_server_memory() {
    let one = One::with(Options::with_segment_bytes(4 << 20), NativeOptions::default());
    let last = append(&one.log, 4_000, 10_000);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut client = FollowClient::connect(format!("http://{}", one.address()))
            .await
            .unwrap()
            .max_decoding_message_size(64 << 20);
        let request = FollowRequest { start: Some(Asked::Oldest(true)), ..FollowRequest::default() };
        let mut stream = client.follow(request).await.unwrap().into_inner();
        assert!(stream.message().await.unwrap().unwrap().head.is_empty());
        // It has started, and stops at the window.
        let sent = || one.server.host.copies().bytes;
        let (mut before, mut still) = (sent(), 0);
        while still < 20 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            still = if sent() == before && before > 0 { still + 1 } else { 0 };
            before = sent();
        }
        assert!(before < 8 << 20, "{before} of 40 MB were taken from the log");
        let other = tempfile::tempdir().unwrap();
        let address = one.address();
        let path = other.path().to_owned();
        let copy = tokio::task::spawn_blocking(move || follow(&path, &[address], Start::First));
        let copy = copy.await.unwrap();
        tokio::task::spawn_blocking(move || copy.wait_for(last, LONG).unwrap()).await.unwrap();
        until("the other one has left", || one.server.host.copies().now == 1);
        drop(stream);
        until("it is no longer counted", || one.server.host.copies().now == 0);
    });
}

/// A connection needs several times the silence limit for a large block: arriving bytes count, not whole messages.
#[test]
fn slow_connection_is_not_silence() {
    let one = One::with(Options::with_segment_bytes(16 << 20), NativeOptions::default());
    let last = one.log.append(&vec![7; 6 << 20]).unwrap();
    let slow = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = slow.local_addr().unwrap().to_string();
    let to = one.address();
    std::thread::spawn(move || {
        for from in slow.incoming().map_while(Result::ok) {
            let up = std::net::TcpStream::connect(&to).unwrap();
            let (mut request, mut back) = (from.try_clone().unwrap(), up.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut request, &mut &up));
            std::thread::spawn(move || {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(n @ 1..) = back.read(&mut bytes) {
                    std::thread::sleep(Duration::from_millis(30));
                    if (&from).write_all(&bytes[..n]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let mut options = quick();
    options.files = Options::with_segment_bytes(16 << 20);
    (options.probe_timeout, options.keep_alive) = (LONG, Duration::from_millis(400));
    let copy = Follower::open(dir.path(), [at], Start::First, options).unwrap();
    copy.wait_for(last, LONG).unwrap();
    same(copy.log(), &one.log, last);
    copy.close().unwrap();
}
