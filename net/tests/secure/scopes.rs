//! Tokens with a scope: which logs each call reaches, over the network; and streams whose scope changes.

use crate::support::{PATIENCE, Served};
use crate::tokens::{client_of, end, message, shown};
use bytes::Bytes;
use chiplog::{BatchBuilder, ErrorKind, Index, Logs, LogsOptions, Options, Start};
use chiplog_net::client::{ProducerOptions, ReadFrom};
use chiplog_net::listener::Settings;
use chiplog_net::listener::auth::roles::{METHODS, Needs, Reach, Role, Scope, Tokens, line_of};
use chiplog_net::served::refusals::Refusal;
use chiplog_net::wire::proto::DESCRIPTORS;
use chiplog_net::wire::proto::v1::admin_client::AdminClient;
use chiplog_net::wire::proto::v1::append_response::Result as Answer;
use chiplog_net::wire::proto::v1::log_client::LogClient;
use chiplog_net::wire::proto::v1::read_request::Start as From;
use chiplog_net::wire::proto::v1::{
    AppendRequest, AppendResponse, AppendTogetherRequest, CreateLogRequest, InfoRequest, ListLogsRequest,
    LogBatch, ReadRequest, StatusRequest, WatchRequest,
};
use chiplog_net::wire::status::from_status;
use prost::Message as _;
use std::collections::BTreeMap;
use std::ops::Deref;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

/// Tokens by their names, each with a role and the prefixes of its scope; none: all logs.
fn tokens(lines: &[(&str, Role, &[&str])]) -> Tokens {
    let line = |(token, role, prefixes): &(&str, Role, &[&str])| {
        let scope = Scope::of(prefixes.iter().copied()).unwrap_or_default();
        line_of(token, *role, &scope) + "\n"
    };
    lines.iter().map(line).collect::<String>().parse().unwrap()
}

/// A server with named logs.
struct Named {
    served: Served,
    logs: Logs,
    _dir: TempDir,
}

impl Deref for Named {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

impl Named {
    async fn start(lines: &[(&str, Role, &[&str])], names: &[&str]) -> Self {
        let served = Served::with_tokens(Settings::default(), Some(tokens(lines))).await;
        let dir = tempfile::tempdir().unwrap();
        let options = LogsOptions::default().options(Options::with_segment_bytes(1 << 20).sessions_max(64));
        let logs = Logs::open(dir.path(), options).unwrap();
        names.iter().for_each(|name| _ = logs.create(name).unwrap());
        served.host.open_named(logs.clone());
        Self { served, logs, _dir: dir }
    }

    async fn native(&self) -> LogClient<Channel> {
        LogClient::new(self.plain().await)
    }

    async fn admin(&self) -> AdminClient<Channel> {
        AdminClient::new(self.plain().await)
    }
}

fn batch() -> Bytes {
    BatchBuilder::new().push(b"x").unwrap().build().unwrap().as_bytes().clone()
}

const TOGETHER: &str = "/chiplog.v1.Log/AppendTogether";

/// Calls any method with a request whose first field is this text, and waits for the first answer. A text on its own is
/// encoded as the first field of a message.
async fn call(channel: &Channel, token: &str, method: &'static str, first: &str) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    if method == TOGETHER {
        // Its logs are in messages within the request. The second one is in the scope.
        let named = |log: &str| LogBatch { log: log.to_owned(), ..LogBatch::default() };
        let appends = AppendTogetherRequest { appends: vec![named("tenant-7/0"), named(first)] };
        let call = LogClient::new(channel.clone()).append_together(shown(token, appends)).await;
        return call.map(drop);
    }
    let request = shown(token, tokio_stream::iter([first.to_owned()]));
    let codec = ProstCodec::<String, ()>::default();
    let answer = client.streaming(request, PathAndQuery::from_static(method), codec);
    let answer = tokio::time::timeout(PATIENCE, answer).await.expect("neither an answer nor a rejection");
    message(&mut answer?.into_inner()).await.map(drop)
}

/// The name of the first field of the request of each method, if it is text.
fn first_fields() -> Vec<(String, Option<String>)> {
    let files = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap().file;
    let mut found = Vec::new();
    for file in &files {
        for service in &file.service {
            for method in &service.method {
                let input = method.input_type().rsplit('.').next().unwrap();
                let input = file.message_type.iter().find(|message| message.name() == input).unwrap();
                let first = input.field.iter().find(|field| field.number() == 1);
                let text = first.filter(|f| f.r#type() == prost_types::field_descriptor_proto::Type::String);
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                found.push((path, text.map(|field| field.name().to_owned())));
            }
        }
    }
    found
}

/// Every method in the table of roles: none forgets the scope.
#[tokio::test]
async fn no_method_reaches_a_log_outside_the_scope() {
    let all: &[(&str, Role, &[&str])] =
        &[("scoped", Role::Admin, &["tenant-7/"]), ("free", Role::Admin, &[])];
    let server = Named::start(all, &["secret", "tenant-7/0"]).await;
    let channel = server.plain().await;
    let at = async |place: &str| {
        Endpoint::from_shared(format!("http://{place}")).unwrap().connect().await.unwrap()
    };
    let (own_port, other_port) = (at(&server.ports["tenant-7/0"]).await, at(&server.ports["secret"]).await);
    let fields = first_fields();
    let mut counted = 0;
    for (method, needs) in METHODS.iter().filter(|(method, _)| !method.starts_with("/grpc.")) {
        let Needs::Role(_, reach) = needs else { panic!("{method} needs no token") };
        let field = fields.iter().find(|(path, _)| path == method).unwrap().1.as_deref();
        if matches!(reach, Reach::Logs | Reach::Leaders) && *method != TOGETHER {
            assert!(matches!(field, Some("log" | "name" | "prefix")), "{method} has {field:?} first");
        }
        let mut told = BTreeMap::new();
        let named = ["", "default", "_system", "_group-1", "secret", "none", "tenant-70/0", "tenant-7"];
        // A request that names no log is empty here.
        for &log in if *reach == Reach::Port { &named[..1] } else { &named } {
            let is_refused = match reach {
                Reach::Leaders => !matches!(log, "" | "default" | "_system"),
                // These begin names of the scope as well, or all of them.
                Reach::Logs if field == Some("prefix") => !"tenant-7/".starts_with(log),
                _ => true,
            };
            let answer = call(&channel, "scoped", method, log).await;
            let Err(status) = answer else {
                assert!(!is_refused, "{method} of {log:?}");
                continue;
            };
            assert_eq!(status.code() == Code::PermissionDenied, is_refused, "{method} of {log:?}: {status}");
            if is_refused {
                counted += 1;
                assert_eq!(from_status(&status).kind(), ErrorKind::PermissionDenied);
                let text = status.message();
                assert!(text.contains(method) && text.contains("tenant-7/"), "{text}");
                assert!(
                    match reach {
                        Reach::Server => true,
                        Reach::Port => text.contains("default"),
                        _ => text.contains(if log.is_empty() { "default" } else { log }),
                    },
                    "{text}"
                );
                told.insert(log, text.replace(&format!("{log:?}"), "it"));
            }
        }
        // The refusal does not tell whether there is such a log.
        assert_eq!(told.get("secret"), told.get("none"));
        if *reach == Reach::Port {
            let status = call(&other_port, "scoped", method, "").await.unwrap_err();
            assert_eq!(status.code(), Code::PermissionDenied, "{method}: {status}");
            assert!(status.message().contains("\"secret\""), "{status}");
            counted += 1;
        }
        // In the scope, and with a token without one, the call gets further.
        let in_scope = match reach {
            Reach::Server => None,
            Reach::Port => Some((&own_port, "")),
            _ => Some((&channel, "tenant-7/9")),
        };
        if let Some((channel, log)) = in_scope {
            let code = call(channel, "scoped", method, log).await.err().map(|status| status.code());
            assert_ne!(code, Some(Code::PermissionDenied), "{method}");
        }
        let code = call(&channel, "free", method, if *reach == Reach::Port { "" } else { "nothing" })
            .await
            .err()
            .map(|status| status.code());
        assert_ne!(code, Some(Code::PermissionDenied), "{method}");
    }
    assert_eq!(server.refusals.read(Refusal::PermissionDenied), counted);
    assert!(server.logs.info("secret").is_ok() && server.logs.info("none").is_err());
}

#[tokio::test]
async fn second_name_of_a_request_is_in_the_scope_too() {
    let server = Named::start(&[("t", Role::Admin, &["a"])], &["a", "b"]).await;
    let (mut admin, mut native) = (server.admin().await, server.native().await);
    for (beside, code) in [("b", Code::PermissionDenied), ("none", Code::PermissionDenied)] {
        let request = CreateLogRequest { name: "a2".into(), beside: beside.into() };
        assert_eq!(admin.create_log(shown("t", request)).await.unwrap_err().code(), code);
    }
    let request = CreateLogRequest { name: "a2".into(), beside: "a".into() };
    admin.create_log(shown("t", request)).await.unwrap();
    // Each log of several that are appended to together.
    let named = |log: &str| LogBatch { log: log.into(), batch: batch(), log_id: String::new() };
    for other in ["b", "none", ""] {
        let request = AppendTogetherRequest { appends: vec![named("a"), named(other)] };
        let refused = native.append_together(shown("t", request)).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{other:?}: {refused}");
    }
    assert_eq!(server.logs.info("a").unwrap().last_index, Index(0));
    // Later requests of a stream.
    let request =
        |log: &&str| AppendRequest { log: (*log).into(), batch: batch(), ..AppendRequest::default() };
    let logs = ["a", "", "b", "", "none", "default", "a2", "a"];
    let requests: Vec<_> = logs.iter().map(request).collect();
    let mut answers = native.append(shown("t", tokio_stream::iter(requests))).await.unwrap().into_inner();
    let mut refused = Vec::new();
    for n in 0..logs.len() {
        if let Some(Answer::Refused(why)) = message(&mut answers).await.unwrap().unwrap().result {
            assert_eq!(ErrorKind::from_code(why.kind), Some(ErrorKind::PermissionDenied), "{why:?}");
            refused.push(n);
        }
    }
    assert_eq!(
        refused,
        [2, 3, 4, 5],
        "those that are not in the scope, and the one that repeats such a name"
    );
    assert!(message(&mut answers).await.unwrap().is_none());
    let lasts = ["a", "a2", "b"].map(|log| server.logs.info(log).unwrap().last_index);
    assert_eq!((lasts, server.log.last_index()), ([Index(3), Index(1), Index(0)], Index(0)));
}

#[tokio::test]
async fn list_has_the_logs_of_the_scope_page_by_page() {
    let names = ["a", "b", "b2", "b3", "c", "d", "d/0", "d/1", "e"];
    let lines: &[(&str, Role, &[&str])] = &[("t", Role::Read, &["d/", "b"]), ("free", Role::Read, &[])];
    let server = Named::start(lines, &names).await;
    let mut admin = server.admin().await;
    let mut list = async |token: &str, prefix: &str, after: &str, limit: u32| {
        let request = ListLogsRequest { prefix: prefix.into(), after: after.into(), limit };
        let page = admin.list_logs(shown(token, request)).await?.into_inner();
        Ok::<_, Status>((page.logs.into_iter().map(|log| log.name).collect::<Vec<_>>().join(" "), page.more))
    };
    for (prefix, after, limit, page, more) in [
        ("", "", 0, "b b2 b3 d/0 d/1", false),
        ("", "", 2, "b b2", true),
        ("", "b2", 2, "b3 d/0", true),
        ("", "d/0", 2, "d/1", false),
        ("", "", 3, "b b2 b3", true),
        ("", "b3", 2, "d/0 d/1", false),
        ("", "c", 1, "d/0", true), // a name that is not in the scope
        ("", "z", 1, "", false),
        ("b", "", 9, "b b2 b3", false),
        ("b3", "", 9, "b3", false),
        ("d", "", 9, "d/0 d/1", false),
    ] {
        assert_eq!(
            list("t", prefix, after, limit).await.unwrap(),
            (page.to_owned(), more),
            "{prefix} {after}"
        );
    }
    assert_eq!(list("t", "a", "", 9).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(list("free", "", "", 0).await.unwrap(), (names.join(" "), false));
}

type Appending = (mpsc::Sender<AppendRequest>, Streaming<AppendResponse>);

async fn appending(server: &Named, token: &str) -> Appending {
    let (sender, requests) = mpsc::channel(4);
    let answers = server.native().await.append(shown(token, ReceiverStream::new(requests))).await;
    (sender, answers.unwrap().into_inner())
}

async fn append((sender, answers): &mut Appending, log: &str) -> Result<Option<AppendResponse>, Status> {
    let _ = sender.send(AppendRequest { log: log.into(), batch: batch(), ..AppendRequest::default() }).await;
    message(answers).await
}

#[tokio::test]
async fn streams_end_when_the_scope_has_their_log_no_more() {
    let lines: &[(&str, Role, &[&str])] = &[("t", Role::Append, &["a", "b"]), ("free", Role::Append, &[])];
    let server = Named::start(lines, &["a", "b"]).await;
    let mut native = server.native().await;
    let mut reading = async |token: &str, log: &str| {
        let request = ReadRequest {
            log: log.into(),
            start: Some(From::Oldest(true)),
            follow: true,
            ..ReadRequest::default()
        };
        let mut stream = native.read(shown(token, request)).await.unwrap().into_inner();
        assert!(message(&mut stream).await.unwrap().is_some());
        stream
    };
    let (of_a, of_b) = (reading("t", "a").await, reading("t", "b").await);
    let (free_a, free_default) = (reading("free", "a").await, reading("free", "").await);
    let watched = WatchRequest { log: "b".into(), ..WatchRequest::default() };
    let watched = server.native().await.watch(shown("t", watched)).await.unwrap().into_inner();
    let (mut to_a, mut to_b) = (appending(&server, "t").await, appending(&server, "t").await);
    append(&mut to_a, "a").await.unwrap();
    append(&mut to_b, "a").await.unwrap();
    append(&mut to_b, "b").await.unwrap();
    // Streams that have not named their log yet.
    let (mut late_a, mut late_b) = (appending(&server, "t").await, appending(&server, "t").await);
    let mut free_late = appending(&server, "free").await;

    server.access.replace(tokens(&[("t", Role::Append, &["a"]), ("free", Role::Append, &["a"])]));
    for ended in [of_b, free_default] {
        assert_eq!(end(ended).await, Code::PermissionDenied);
    }
    assert_eq!(end(watched).await, Code::PermissionDenied);
    let refused = append(&mut to_b, "a").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("\"b\""), "{refused}");
    assert_eq!(append(&mut late_b, "b").await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(append(&mut free_late, "").await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(server.refusals.read(Refusal::PermissionDenied), 6);
    assert_eq!(server.logs.info("b").unwrap().last_index, Index(1));
    assert_eq!(server.log.last_index(), Index(0));
    // The others continue.
    append(&mut to_a, "").await.unwrap();
    append(&mut late_a, "a").await.unwrap();
    assert_eq!(server.logs.info("a").unwrap().last_index, Index(4));
    for mut stream in [of_a, free_a] {
        assert!(message(&mut stream).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn clients_work_within_a_scope_and_are_told_its_limits() {
    let lines: &[(&str, Role, &[&str])] =
        &[("t", Role::Admin, &["tenant-7/", "whole"]), ("append", Role::Append, &["tenant-7/"])];
    let server = Named::start(lines, &["secret", "whole"]).await;
    // A client of the default log creates the first log of its scope.
    let client = client_of(&server, "t", "").await.unwrap();
    client.create_log("tenant-7/0").await.unwrap();
    for name in ["tenant-7/0", "whole"] {
        let own = client.of_log(name).await.unwrap();
        let producer = own.producer(ProducerOptions::default()).await.unwrap();
        producer.append(b"x").await.unwrap().await.unwrap();
        assert!(producer.close(PATIENCE).await.all_acknowledged());
        let mut records = own.reader(Start::First, ReadFrom::Any);
        assert_eq!(&records.next_record().await.unwrap().unwrap().data[..], b"x");
        assert_eq!(own.info().await.unwrap().last, Index(1));
        own.discard(Index(2)).await.unwrap();
    }
    let names: Vec<_> = client.list_logs("").await.unwrap().into_iter().map(|log| log.name).collect();
    assert_eq!(names, ["tenant-7/0", "whole"]);
    client.seal_log("tenant-7/0").await.unwrap();
    client.delete_log("tenant-7/0").await.unwrap();

    let denied = |error: chiplog::Error, word: &str| {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        let text = error.to_string();
        assert!(text.contains(word) && text.contains("tenant-7/"), "{text}");
    };
    denied(client.info().await.unwrap_err(), "\"default\"");
    denied(client.producer(ProducerOptions::default()).await.map(drop).unwrap_err(), "\"default\"");
    denied(
        client.reader(Start::First, ReadFrom::Any).next_record().await.map(drop).unwrap_err(),
        "\"default\"",
    );
    denied(client.create_log("other").await.unwrap_err(), "\"other\"");
    denied(client.delete_log("secret").await.unwrap_err(), "\"secret\"");
    for name in ["secret", "none"] {
        denied(client_of(&server, "t", name).await.map(drop).unwrap_err(), name);
    }
    // The role counts within the scope.
    let lesser = client_of(&server, "append", "").await.unwrap();
    let refused = lesser.create_log("tenant-7/1").await.unwrap_err();
    assert!(refused.kind() == ErrorKind::PermissionDenied && refused.to_string().contains("role admin"));
}

/// Totals tell about the logs of others.
#[tokio::test]
async fn status_shows_only_servers_and_leaders_within_a_scope() {
    let lines: &[(&str, Role, &[&str])] = &[("t", Role::Read, &["a"]), ("free", Role::Read, &[])];
    let server = Named::start(lines, &["a", "b"]).await;
    let mut admin = server.admin().await;
    let mut status = async |token: &str, log: &str| {
        admin.status(shown(token, StatusRequest { log: log.into() })).await.unwrap().into_inner()
    };
    for log in ["", "_system", "a"] {
        let (own, all) = (status("t", log).await, status("free", log).await);
        assert_eq!((&own.log_id, own.role, own.term), (&all.log_id, all.role, all.term), "{log}");
        assert_eq!((own.last, own.last_raft, own.bytes_used, own.disk_bytes), (0, 0, 0, 0), "{log}");
        assert!(own.groups.is_empty() && all.last_raft > 0 && all.disk_bytes > 0, "{log}");
    }
    assert_eq!(status("free", "").await.groups.len(), server.logs.groups().len() + 1);
    let mut native = server.native().await;
    native.info(shown("free", InfoRequest::default())).await.unwrap();
}
