//! Views that read over gRPC, against servers that send wrong answers: the view must leave each of them, keep nothing
//! of it in its tables, and complete them from the next server.

use crate::ROOT;
use crate::compare::{expected, tables};
use crate::process::{Files, Processes};
use crate::views::{Built, Place, Program, VIEWS};
use chiplog::{BatchBuilder, Codec};
use chiplog_net::wire::proto::v1::log_server::{Log, LogServer};
use chiplog_net::wire::proto::v1::read_request::Start;
use chiplog_net::wire::proto::v1::*;
use std::path::Path;
use std::pin::Pin;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Two a batch, one of them long enough for a codec to have an effect.
fn lines() -> Vec<Vec<u8>> {
    let long = |line: &str| line.repeat(20).into_bytes();
    vec![
        b"It's Light".to_vec(),
        Vec::new(),
        long("Colours, and colours; COLOURS. "),
        b"na\xc3\xafve".to_vec(),
        b"Rays".to_vec(),
        long("An end. "),
    ]
}

/// How a server answers a read.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Flips a bit of the second batch.
    Flips,
    /// The same, with a body that does not unpack under a matching checksum.
    Garbles,
    /// Omits the second batch.
    Skips,
    /// Sends the first batch twice.
    Repeats,
    /// Has fewer records than others, and reports that it is alive.
    LagsBehind,
    /// It has another log.
    AnotherLog,
    /// Answers correctly.
    Honest,
}

/// Three batches of two lines, each with another codec.
fn batches() -> Vec<StoredBatch> {
    let codecs = [Codec::None, Codec::Lz4, Codec::Zstd];
    let lines = lines();
    let packed = lines.chunks(2).zip(codecs).zip((1..).step_by(2)).map(|((lines, codec), first)| {
        let mut builder = BatchBuilder::new();
        builder.codec(codec);
        for line in lines {
            builder.push(line).unwrap();
        }
        let batch = builder.build().unwrap();
        assert_eq!(batch.codec(), codec);
        StoredBatch { first, timestamp_nanos: 1, batch: batch.as_bytes().clone() }
    });
    packed.collect()
}

impl Way {
    fn batches(self) -> Vec<StoredBatch> {
        let mut batches = batches();
        let damaged = |batch: &mut StoredBatch, at: usize, value: u8| {
            let mut bytes = batch.batch.to_vec();
            bytes[at] ^= value;
            batch.batch = bytes.into();
        };
        match self {
            Self::Flips => damaged(&mut batches[1], 45, 1),
            Self::Garbles => {
                let mut bytes = batches[1].batch.to_vec();
                bytes[40..].fill(0xff);
                let sum = crc32c(&bytes[4..]).to_le_bytes();
                bytes[..4].copy_from_slice(&sum);
                batches[1].batch = bytes.into();
            }
            Self::Skips => _ = batches.remove(1),
            Self::Repeats => batches.insert(1, batches[0].clone()),
            Self::LagsBehind => batches.truncate(1),
            Self::AnotherLog | Self::Honest => {}
        }
        batches
    }
}

/// Bit by bit, as in RFC 3720.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 },
        )
    })
}

#[tonic::async_trait]
impl Log for Way {
    type AppendStream = Answers<AppendResponse>;
    type ReadStream = Answers<ReadResponse>;
    type WatchStream = Answers<WatchResponse>;

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let Some(Start::Index(next)) = request.into_inner().start else {
            return Err(Status::invalid_argument("start"));
        };
        let last = self.batches().last().map_or(0, |batch| batch.first + 1);
        let answer = move |batches| Ok(ReadResponse { batches, last, first: 1, next, short: false });
        // The batch that holds the record, and all later ones, one a response.
        let came: Vec<_> =
            self.batches().into_iter().filter(|b| b.first + 1 >= next).map(|b| answer(vec![b])).collect();
        let alive = (0..5).map(move |_| answer(Vec::new()));
        let begin = std::iter::once(answer(Vec::new()));
        let answers = begin.chain(came).chain(alive.collect::<Vec<_>>());
        Ok(Response::new(Box::pin(
            tokio_stream::iter(answers.collect::<Vec<_>>()).chain(tokio_stream::pending()),
        )))
    }

    async fn server_info(
        &self,
        _: Request<ServerInfoRequest>,
    ) -> Result<Response<ServerInfoResponse>, Status> {
        let log_id = if matches!(self, Self::AnotherLog) { "b0" } else { "a0" };
        Ok(Response::new(ServerInfoResponse {
            protocol_min: 1,
            protocol_max: 1,
            features: vec!["read".into(), "read.min_index".into()],
            log_id: log_id.into(),
            ..Default::default()
        }))
    }

    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        let last = self.batches().last().map_or(0, |batch| batch.first + 1);
        Ok(Response::new(InfoResponse { first: 1, last, ..Default::default() }))
    }

    async fn append(
        &self,
        _: Request<Streaming<AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        Err(Status::unimplemented("append"))
    }

    async fn append_together(
        &self,
        _: Request<AppendTogetherRequest>,
    ) -> Result<Response<AppendTogetherResponse>, Status> {
        Err(Status::unimplemented("append_together"))
    }

    async fn discard(&self, _: Request<DiscardRequest>) -> Result<Response<DiscardResponse>, Status> {
        Err(Status::unimplemented("discard"))
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("watch"))
    }

    async fn open_session(
        &self,
        _: Request<OpenSessionRequest>,
    ) -> Result<Response<OpenSessionResponse>, Status> {
        Err(Status::unimplemented("open_session"))
    }

    async fn close_session(
        &self,
        _: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        Err(Status::unimplemented("close_session"))
    }
}

async fn serve(way: Way) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tonic::transport::Server::builder().add_service(LogServer::new(way));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

/// The built view; `None`: its tool is missing.
///
/// It is built apart from the driver's: Maven removes the classes that it compiles again, and `make test` runs both
/// programs side by side.
fn built(name: &str) -> Option<Program> {
    let root = Path::new(ROOT).canonicalize().unwrap();
    let out = root.join("target/examples/liars");
    std::fs::create_dir_all(&out).unwrap();
    let place = Place { programs: out.clone(), out, root };
    match VIEWS.iter().find(|view| view.name == name).unwrap().build(&place).unwrap() {
        Built::Ready(program) => Some(program),
        Built::Skipped(why) => {
            eprintln!("the view in {name} was NOT tested: {why}");
            None
        }
    }
}

/// Names that the gRPC clients of Go and Java give to an answer that did not arrive in time.
const LATE: [&str; 2] = ["DEADLINE_EXCEEDED", "DeadlineExceeded"];

fn leaves_liars(name: &str) {
    let Some(program) = built(name) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (summary, hash) = expected(lines().iter().map(Vec::as_slice));
    let honest = runtime.block_on(serve(Way::Honest));
    for (way, why) in [
        (Way::Flips, "checksum"),
        (Way::Garbles, "unpack"),
        (Way::Skips, "where 3 is due"),
        (Way::Repeats, "where 3 is due"),
        (Way::LagsBehind, "others have more"),
    ] {
        let cluster = [runtime.block_on(serve(way)), honest.clone()];
        // On a machine that is slow enough a view leaves the liar before it gets an answer.
        let is_late =
            |line: &String| line.contains(&cluster[0]) && LATE.iter().any(|late| line.contains(late));
        let (dir, files, ended) = (0..10)
            .map(|_| {
                let dir = tempfile::tempdir().unwrap();
                let files = Files::new(dir.path(), false);
                let ended =
                    Processes::default().start(name, &program, &cluster, &files, 6).unwrap().end().unwrap();
                assert!(ended.success, "{way:?}: {ended:?}");
                (dir, files, ended)
            })
            .find(|(.., ended)| !ended.lines.iter().any(is_late))
            .unwrap_or_else(|| panic!("{way:?}: the liar never answered in time"));
        let told = ended.lines.iter().any(|line| line.contains(&cluster[0]) && line.contains(why));
        assert!(told, "{way:?}: {ended:?}");
        assert!(ended.lines.contains(&summary.to_string()), "{way:?}: {ended:?}");
        assert_eq!(tables(&files.db).unwrap(), hash, "{way:?}: {ended:?}");
        // It is a view of one log, and accepts no other.
        let other = [runtime.block_on(serve(Way::AnotherLog))];
        let ended = Processes::default().start(name, &program, &other, &files, 7).unwrap().end().unwrap();
        assert!(!ended.success && ended.lines.iter().any(|line| line.contains("has log b0")), "{ended:?}");
        assert_eq!(tables(&files.db).unwrap(), hash);
        drop(dir);
    }
}

#[test]
fn the_go_view_leaves_servers_that_lie() {
    leaves_liars("go");
}

#[test]
fn the_java_view_leaves_servers_that_lie() {
    leaves_liars("java");
}
