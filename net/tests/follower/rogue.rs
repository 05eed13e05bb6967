//! Servers of another log, and servers that send invalid data.

use crate::served::{One, Server, free_port};
use crate::support::{LONG, append, event, follow, quick, same};
use bytes::Bytes;
use chiplog::follower::FollowFrom;
use chiplog::vault::Vault as _;
use chiplog::{ErrorKind, Log, Start};
use chiplog_net::client::ClientOptions;
use chiplog_net::client::blocking::ServedObjects;
use chiplog_net::follower::{Follower, FollowerEvent};
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::service::log::{LogService, NativeOptions};
use chiplog_net::wire::proto::v1::follow_client::FollowClient;
use chiplog_net::wire::proto::v1::follow_request::Start as Asked;
use chiplog_net::wire::proto::v1::follow_server::{Follow, FollowServer};
use chiplog_net::wire::proto::v1::{
    FollowPlace, FollowRequest, FollowResponse, ObjectSizeRequest, ObjectSizeResponse, ReadObjectRequest,
    ReadObjectResponse,
};
use chiplog_net::wire::status::from_status;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// Servers of another cluster are never used; if no other server is left, waiting calls return the error.
#[test]
fn servers_of_another_log_are_rejected() {
    let (one, wrong) = (One::new(), One::new());
    let last = append(&one.log, 100, 100);
    append(&wrong.log, 500, 100);
    let dir = tempfile::tempdir().unwrap();
    follow(dir.path(), &[one.address()], Start::First).wait_for(last, LONG).unwrap();
    let copy = follow(dir.path(), &[wrong.address(), one.address()], Start::First);
    let last = append(&one.log, 10, 100);
    copy.wait_for(last, LONG).unwrap();
    same(copy.log(), &one.log, last);
    assert_eq!(wrong.server.host.copies().begun, 0);
    copy.close().unwrap();

    let copy = follow(dir.path(), &[wrong.address()], Start::First);
    let waited = copy.wait_for(last.next(), LONG).unwrap_err();
    assert_eq!(waited.kind(), ErrorKind::Diverged, "{waited}");
    let stopped = event(&copy, |e| match e {
        FollowerEvent::Stopped { error } => Some(error.kind()),
        _ => None,
    });
    assert_eq!(stopped, ErrorKind::Diverged);
    assert_eq!(copy.status().stopped.map(|e| e.kind()), Some(ErrorKind::Diverged));
    assert_eq!(copy.log().last_index(), last, "existing records can be read");
    drop(copy);
    // The server checks as well, and returns errors that other clients understand.
    let (code, kind) = refusal(&one.address(), |request| request.log_id = vec![7; 16].into());
    assert_eq!((code, kind), (tonic::Code::FailedPrecondition, ErrorKind::Diverged));
    let other_history = |request: &mut FollowRequest| {
        request.start = Some(Asked::After(FollowPlace { index: 2, term: 77 }));
    };
    assert_eq!(refusal(&one.address(), other_history).1, ErrorKind::Diverged);
    assert_eq!(refusal(&one.address(), |r| r.log = "other".into()).1, ErrorKind::NotFound);
    assert_eq!(refusal(&one.address(), |r| r.start = None).1, ErrorKind::InvalidArgument);
    assert_eq!(refusal(&one.address(), |r| r.log_id = vec![1].into()).1, ErrorKind::InvalidArgument);
    let far = |r: &mut FollowRequest| r.start = Some(Asked::Index(1_000_000));
    assert_eq!(refusal(&one.address(), far).1, ErrorKind::OutOfRange);
}

/// A server's answer to an invalid request.
fn refusal(server: &str, change: impl FnOnce(&mut FollowRequest)) -> (tonic::Code, ErrorKind) {
    let mut request = FollowRequest { start: Some(Asked::Oldest(true)), ..FollowRequest::default() };
    change(&mut request);
    let server = format!("http://{server}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = FollowClient::connect(server).await.unwrap();
        let status = match client.follow(request).await {
            Err(status) => status,
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match tokio::time::timeout(LONG, stream.message()).await.unwrap() {
                        Ok(Some(_)) => {}
                        Ok(None) => panic!("it ended without an error"),
                        Err(status) => break status,
                    }
                }
            }
        };
        (status.code(), from_status(&status).kind())
    })
}

type Spoil = fn(&mut FollowResponse);
type Stream<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;
type Responses = Stream<FollowResponse>;

/// Feeds copies of a log, but corrupts its responses.
struct Rogue {
    log: Log,
    spoil: Spoil,
    asked: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl Follow for Rogue {
    type FollowStream = Responses;

    async fn follow(&self, request: Request<FollowRequest>) -> Result<Response<Responses>, Status> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let from = match request.into_inner().start {
            Some(Asked::After(FollowPlace { index, term })) => FollowFrom::After {
                log: self.log.log_id(),
                raft: chiplog::EntryIndex(index),
                term: chiplog::Term(term),
            },
            _ => FollowFrom::First,
        };
        let mut feed = self.log.follow(from).unwrap();
        let id = self.log.log_id().get().to_be_bytes().to_vec().into();
        let committed = feed.committed().get();
        let hello = FollowResponse { log_id: id, committed, last: 1, first: 1, ..Default::default() };
        let mut all = vec![Ok(hello)];
        while let Some(fed) = feed.next(4096).unwrap() {
            let (head, bodies) = fed.encode();
            let mut response =
                FollowResponse { head, bodies, committed, last: 1, first: 1, ..Default::default() };
            (self.spoil)(&mut response);
            all.push(Ok(response));
        }
        Ok(Response::new(Box::pin(tokio_stream::iter(all).chain(tokio_stream::pending()))))
    }

    type ReadObjectStream = Stream<ReadObjectResponse>;

    /// Sends another number of bytes than was asked for: the name's last digit is how many.
    async fn read_object(
        &self,
        request: Request<ReadObjectRequest>,
    ) -> Result<Response<Self::ReadObjectStream>, Status> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let bytes = request.into_inner().name.pop().unwrap().to_digit(10).unwrap();
        let piece = vec![7; bytes as usize].into();
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(ReadObjectResponse { piece })]))))
    }

    async fn object_size(
        &self,
        _: Request<ObjectSizeRequest>,
    ) -> Result<Response<ObjectSizeResponse>, Status> {
        Err(Status::unimplemented("an earlier version"))
    }
}

/// A part of an object, or of a list, is never taken for all of it.
#[test]
fn objects_in_another_size_are_refused() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let one = One::new();
    let asked = Arc::<AtomicU64>::default();
    let rogue = Rogue { log: one.log.clone(), spoil: |_| {}, asked: asked.clone() };
    let rogue = runtime.block_on(rogue.serve());
    let options = ClientOptions::default().timeout(Duration::from_secs(1));
    let objects = ServedObjects::new([rogue], options).unwrap();
    assert_eq!(objects.get("o/4", 0..4).unwrap(), vec![7; 4]);
    for name in ["o/3", "o/5", "o/0"] {
        let before = asked.load(Ordering::Relaxed);
        assert_eq!(objects.get(name, 0..4).unwrap_err().kind(), ErrorKind::Unavailable, "{name}");
        assert!(asked.load(Ordering::Relaxed) > before + 1, "asked again");
    }
    assert_eq!(objects.size("o/4").unwrap_err().kind(), ErrorKind::Unsupported);
}

impl Rogue {
    async fn serve(self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let host = LogSlot::new();
        host.open(self.log.clone());
        let server = tonic::transport::Server::builder()
            .add_service(LogService::new(host).into_service())
            .add_service(FollowServer::new(self));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        address
    }
}

fn flip(bytes: &mut Bytes, at: usize) {
    let mut copy = bytes.to_vec();
    let at = at.min(copy.len() - 1);
    copy[at] ^= 4;
    *bytes = copy.into();
}

/// No invalid data from a server is stored, and the next server is used.
#[test]
fn invalid_responses_are_not_stored() {
    let spoils: [(&str, Spoil); 6] = [
        ("a bit of a body", |r| {
            if let Some(body) = r.bodies.iter_mut().find(|b| !b.is_empty()) {
                flip(body, 100);
            }
        }),
        ("a bit of a head", |r| flip(&mut r.head, 30)),
        ("a body is missing", |r| drop(r.bodies.pop())),
        ("a head is cut off", |r| r.head = r.head.slice(..r.head.len() / 2)),
        ("meaningless bytes", |r| (r.head, r.bodies) = (vec![1; 50].into(), Vec::new())),
        ("one body too many", |r| r.bodies.push(vec![0; 10].into())),
    ];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let one = One::new();
    let last = append(&one.log, 300, 200);
    for (what, spoil) in spoils {
        let dir = tempfile::tempdir().unwrap();
        // A part is there already, undamaged.
        follow(dir.path(), &[one.address()], Start::First).wait_for(last, LONG).unwrap();
        let last = append(&one.log, 100, 200);
        let asked = Arc::<AtomicU64>::default();
        let rogue = Rogue { log: one.log.clone(), spoil, asked: asked.clone() };
        let rogue = runtime.block_on(rogue.serve());
        let port = free_port();
        let copy = follow(dir.path(), &[rogue.clone(), format!("127.0.0.1:{port}")], Start::First);
        let why = event(&copy, |e| match e {
            FollowerEvent::Failed { server: Some(server), error } if *server == rogue => Some(error.clone()),
            _ => None,
        });
        assert!(matches!(why.kind(), ErrorKind::Corrupt | ErrorKind::Diverged), "{what}: {why}");
        assert!(why.to_string().contains(&rogue), "{what}: {why}");
        assert!(asked.load(Ordering::Relaxed) > 0 && copy.status().stopped.is_none(), "{what}");
        let right = Server::start_at(one.log.clone(), port, NativeOptions::default());
        copy.wait_for(last, LONG).unwrap();
        same(copy.log(), &one.log, last);
        copy.close().unwrap();
        drop(right);
    }
}

/// Another head with a correct checksum.
fn changed(head: &Bytes, change: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut head = head.to_vec();
    change(&mut head);
    let crc = crc32c(&head[4..]);
    head[..4].copy_from_slice(&crc.to_le_bytes());
    head.into()
}

/// CRC-32C (Castagnoli), bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

/// Servers and followers are not upgraded at the same moment. Additions of a later version are ignored; a response that
/// cannot be understood without them is rejected, and the error says what to do.
#[test]
fn later_servers_feed_copies_or_are_rejected_as_later() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let one = One::new();
    let last = append(&one.log, 100, 100);
    let serve = |spoil: Spoil| {
        let rogue = Rogue { log: one.log.clone(), spoil, asked: Arc::default() };
        runtime.block_on(rogue.serve())
    };
    let later = serve(|r| {
        r.head = changed(&r.head, |head| {
            head[6] = 8;
            head.splice(48..48, [3; 8]);
        });
    });
    let dir = tempfile::tempdir().unwrap();
    let copy = follow(dir.path(), &[later], Start::First);
    copy.wait_for(last, LONG).unwrap();
    same(copy.log(), &one.log, last);

    let too_late = serve(|r| r.head = changed(&r.head, |head| head[5] = 2));
    let dir = tempfile::tempdir().unwrap();
    let refused =
        Follower::open(dir.path(), [too_late.clone()], Start::First, quick()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains(&too_late), "{refused}");
    assert!(refused.to_string().contains("upgrade the follower"), "{refused}");
    // While another server has this version, the copy continues with that one.
    let copy = follow(dir.path(), &[too_late, one.address()], Start::First);
    copy.wait_for(last, LONG).unwrap();
}
