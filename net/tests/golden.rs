//! The bytes of requests and answers of the first revision. Never generated again. Later servers and clients must read
//! them, and their own messages must be readable for a program that does not know later additions.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog_net::wire::proto::v1::*;
use chiplog_net::wire::proto::{logspec, v1};
use prost::Message;
use std::fmt::Debug;

/// A field that no revision has or will have: a later revision may send unknown fields.
const UNKNOWN: &[u8] = &[0xf8, 0xff, 0xff, 0xff, 0x0f, 1];

fn held<M: Message + Default + PartialEq + Debug>(hex: &str, message: M) {
    let bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    assert_eq!(M::decode(&bytes[..]).unwrap(), message, "{hex}");
    assert_eq!(message.encode_to_vec(), bytes, "{message:?}");
    // A program of another revision ignores unknown fields.
    assert_eq!(M::decode(&[UNKNOWN, &bytes].concat()[..]).unwrap(), message);
}

#[test]
fn messages_keep_their_bytes() {
    held::<v1::AppendRequest>(
        "0a0764656661756c741203616263",
        AppendRequest { log: "default".into(), batch: "abc".into(), ..AppendRequest::default() },
    );
    held::<v1::AppendRequest>(
        "0a01611201621a0163",
        AppendRequest { log: "a".into(), batch: "b".into(), log_id: "c".into() },
    );
    held::<v1::AppendResponse>(
        "0a06080710021801",
        AppendResponse {
            result: Some(append_response::Result::Appended(Appended { first: 7, count: 2, durability: 1 })),
        },
    );
    held::<v1::AppendResponse>(
        "120f081412026e6f180120012a03613a31",
        AppendResponse {
            result: Some(append_response::Result::Refused(Refused {
                kind: 20,
                message: "no".into(),
                retryable: true,
                outcome_unknown: true,
                leader: "a:1".into(),
                retry_after_millis: 0,
            })),
        },
    );
    held::<v1::ReadRequest>(
        "0a0764656661756c7410ac02380140014802500358e807",
        ReadRequest {
            log: "default".into(),
            start: Some(read_request::Start::Index(300)),
            follow: true,
            bytes_max: 1,
            records_max: 2,
            min_index: 3,
            keep_alive_millis: 1000,
        },
    );
    held::<v1::ReadRequest>(
        "3001",
        ReadRequest { start: Some(read_request::Start::Newest(true)), ..Default::default() },
    );
    held::<v1::ReadResponse>(
        "0a07080110021a0162100318042005",
        ReadResponse {
            batches: vec![StoredBatch { first: 1, timestamp_nanos: 2, batch: "b".into() }],
            last: 3,
            first: 4,
            next: 5,
            short: false,
        },
    );
    held::<v1::DiscardRequest>("0a0764656661756c741009", DiscardRequest { log: "default".into(), first: 9 });
    held::<v1::InfoRequest>(
        "0a0764656661756c741001",
        InfoRequest { log: "default".into(), allow_stale: true },
    );
    held::<v1::WatchRequest>(
        "0a0764656661756c741032",
        WatchRequest { log: "default".into(), interval_millis: 50 },
    );
    held::<v1::OpenSessionResponse>("080c", OpenSessionResponse { session: 12 });
    held::<v1::CloseSessionRequest>("100c", CloseSessionRequest { log: String::new(), session: 12 });
    held::<v1::PeerMessage>(
        "0a16080112016c180122016628023201743a05702063207a",
        PeerMessage {
            message: Some(peer_message::Message::Hello(PeerHello {
                protocol: 1,
                log_id: "l".into(),
                from: 1,
                from_directory: "f".into(),
                to: 2,
                to_directory: "t".into(),
                from_address: "p c z".into(),
                features: 0,
                stream: 0,
                group: 0,
            })),
        },
    );
    held::<v1::PeerHello>(
        "080140014801",
        PeerHello { protocol: 1, features: 1, stream: 1, ..PeerHello::default() },
    );
    held::<v1::PeerHello>("080150ac02", PeerHello { protocol: 1, group: 300, ..PeerHello::default() });
    held::<v1::HostRequest>(
        "080112016318022003280532016c",
        HostRequest { protocol: 1, cluster: "c".into(), from: 2, to: 3, group: 5, log_id: "l".into() },
    );
    held::<v1::HostResponse>("0a0164", HostResponse { directory: "d".into() });
    held::<v1::PeerMessage>(
        "120c0a01681201311201321a0174",
        PeerMessage {
            message: Some(peer_message::Message::Envelope(PeerEnvelope {
                head: "h".into(),
                bodies: vec!["1".into(), "2".into()],
                to_directory: "t".into(),
            })),
        },
    );
    held::<v1::ChangeMembersRequest>(
        "1202100318f403",
        ChangeMembersRequest {
            log: String::new(),
            changes: vec![MemberChange { change: Some(member_change::Change::Promote(3)) }],
            timeout_millis: 500,
            force: false,
        },
    );
    held::<logspec::ReadRequest>("0805", logspec::ReadRequest { next_index: 5 });
    held::<logspec::AppendReply>(
        "0a070801120307ac02",
        logspec::AppendReply {
            reply: Some(logspec::append_reply::Reply::Ok(logspec::append_reply::Ok {
                sequence: 1,
                indexes: vec![7, 300],
            })),
        },
    );
    held::<logspec::InfoReply>(
        "0a080801100218032004",
        logspec::InfoReply {
            reply: Some(logspec::info_reply::Reply::Ok(logspec::info_reply::Ok {
                first_index: 1,
                last_index: 2,
                bytes_used: 3,
                bytes_total: 4,
            })),
        },
    );
}
