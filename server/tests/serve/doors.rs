//! Tokens and limits of a server process.

use crate::harness::{PATIENCE, Server, chiplog, keys, run, wait};
use chiplog_net::service::logspec::AppendRequest;
use chiplog_net::wire::proto::logspec::ReadRequest;
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Makes a token. Returns its line and the file that holds it.
fn token(dir: &Path, role: &str) -> (String, PathBuf) {
    let made = run(&["token", "--role", role, "--json"]).ok().json();
    let file = dir.join(format!("{role}.token"));
    fs::write(&file, made["token"].as_str().unwrap()).unwrap();
    (made["line"].as_str().unwrap().to_owned(), file)
}

#[test]
fn token_and_its_line_are_separate() {
    let text = run(&["token", "--role", "append"]).ok().out;
    let half = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)).unwrap().trim().to_owned();
    let (token, line) = (half("token"), half("line"));
    assert!(line.starts_with("append:") && !line.contains(&token));
    assert_ne!(run(&["token"]).ok().out, run(&["token"]).ok().out);
    assert_eq!(run(&["token", "--role", "root"]).code, 2);
    // The line has a comment on its user, which the servers ignore.
    let line =
        run(&["token", "--comment", "shop 7", "--json"]).ok().json()["line"].as_str().unwrap().to_owned();
    assert!(line.starts_with("read:") && line.ends_with("  # shop 7"), "{line}");
    line.parse::<chiplog_net::listener::auth::roles::Tokens>().unwrap();
    assert_eq!(run(&["token", "--comment", "a\nadmin:b"]).code, 2, "a comment cannot add a line");
    // The secret half is written to its own file and nowhere else.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("new.token");
    let out = file.to_str().unwrap();
    let made = run(&["token", "--role", "read", "--out", out, "--json"]).ok().json();
    let token = fs::read_to_string(&file).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(made["line"], format!("read:{}", chiplog_net::listener::auth::roles::digest_of(token.trim())));
    assert_eq!((made.get("token"), &made["out"]), (None, &out.into()));
    let refused = run(&["token", "--out", out]);
    assert!(refused.code == 2 && refused.err.contains("--overwrite"), "{}", refused.err);
    assert_eq!(fs::read_to_string(&file).unwrap(), token);
    let text = run(&["token", "--out", out, "--overwrite"]).ok().out;
    let after = fs::read_to_string(&file).unwrap();
    assert!(after != token && text.starts_with("read:") && !text.contains(after.trim()), "{text}");
}

#[test]
fn roles_allow_their_calls_and_tokens_reload() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    let all = ["read", "append", "admin"].map(|role| token(dir.path(), role));
    let lines: String = all.iter().map(|(line, _)| format!("{line} # a comment\n")).collect();
    fs::write(&tokens, &lines).unwrap();
    let mut server = Server::new(1, dir.path());
    let setting = format!("auth.tokens={}", tokens.display());
    server.spawn(&["--init", "--set", &setting]);
    let [read, append, admin] = all.map(|(_, file)| file.to_str().unwrap().to_owned());
    let with = |token: &str, args: &[&str]| {
        let args: Vec<&str> = args.iter().copied().chain(["--token-file", token]).collect();
        run(&args)
    };
    wait("it leads", || {
        (with(&read, &["status", &server.client, "--json"]).json()["leader"] == 1).then_some(())
    });
    // Only health needs no token.
    assert_eq!(server.page("/readyz").0, 200);
    let records = dir.path().join("records");
    fs::write(&records, "one\ntwo\n").unwrap();
    let records = records.to_str().unwrap();
    let bare = run(&["info", &server.client]);
    assert_eq!((bare.code, bare.err.contains("CHIPLOG_TOKEN")), (2, true), "{}", bare.err);
    let bare = run(&["status", &server.client]);
    assert_eq!((bare.code, bare.err.contains("CHIPLOG_TOKEN")), (2, true), "{}", bare.err);

    let refused = with(&read, &["append", &server.client, "--lines", records]);
    assert_eq!((refused.code, refused.err.contains("role append")), (2, true), "{}", refused.err);
    with(&append, &["append", &server.client, "--lines", records]).ok();
    assert_eq!(with(&read, &["read", &server.client]).ok().out, "one\ntwo\n");
    let refused = with(&append, &["discard", &server.client, "2"]);
    assert_eq!((refused.code, refused.err.contains("role admin")), (2, true), "{}", refused.err);
    with(&admin, &["discard", &server.client, "2"]).ok();
    // The log reports discards and whose token made them; refused discards appear only in the metrics.
    let digest = lines.lines().find_map(|line| line.strip_prefix("admin:")).unwrap();
    let by = format!("token=\"{}\"", &digest[..8]);
    wait("the log reports it", || {
        server.said().contains("records before the first were discarded").then_some(())
    });
    let said = server.said();
    let calls: Vec<&str> = said.lines().filter(|line| line.contains("an administrative call")).collect();
    assert_eq!(calls.len(), 1, "{said}");
    for part in [" INFO ", "method=\"Discard\"", "remote=127.0.0.1:", &by] {
        assert!(calls[0].contains(part), "{part}: {said}");
    }
    // The variable works like the file.
    let output = chiplog()
        .args(["info", &server.client])
        .env("CHIPLOG_TOKEN", fs::read_to_string(&read).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    // One token is removed. A file that is not a file of tokens changes nothing.
    let left: String = lines.lines().filter(|l| !l.starts_with("read:")).map(|l| format!("{l}\n")).collect();
    fs::write(&tokens, "nonsense").unwrap();
    server.hang_up();
    wait("the log reports it", || server.said().contains("reload failed").then_some(()));
    assert!(!server.said().contains("nonsense"), "it might have been a token");
    with(&read, &["info", &server.client]).ok();
    fs::write(&tokens, left).unwrap();
    server.hang_up();
    wait("the removed token is refused", || (with(&read, &["info", &server.client]).code == 2).then_some(()));
    with(&append, &["info", &server.client]).ok();

    let figures = server.page("/metrics").1;
    let counted = |what: &str| {
        let line =
            figures.lines().find(|l| l.starts_with(what)).unwrap_or_else(|| panic!("{what}: {figures}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(counted("chiplog_refused_total{reason=\"unauthenticated\"}") >= 2.0);
    assert!(counted("chiplog_refused_total{reason=\"permission_denied\"}") >= 2.0);
    assert_eq!(counted("chiplog_reload_broken"), 0.0);
    assert_eq!(server.stop(), Some(0));
}

/// A token for some logs: from the command that makes it to the commands that use it.
#[test]
fn scoped_token_reaches_its_logs_only() {
    let dir = tempfile::tempdir().unwrap();
    let made = run(&[
        "token",
        "--role",
        "admin",
        "--logs",
        "tenant-7/",
        "--logs",
        "whole",
        "--logs",
        "whole-2",
        "--json",
    ]);
    let made = made.ok().json();
    assert_eq!(keys(&made), ["role", "token", "line", "logs"]);
    assert_eq!(made["logs"], serde_json::json!(["tenant-7/", "whole"]));
    let line = made["line"].as_str().unwrap();
    assert!(line.starts_with("admin:") && line.ends_with(" logs=tenant-7/,whole"), "{line}");
    for (prefix, word) in
        [("", "empty"), ("_group-1", "begins with _"), ("a b", "character"), ("a/b", "number")]
    {
        let refused = run(&["token", "--logs", prefix]);
        assert!(refused.code == 2 && refused.err.contains(word), "{prefix:?}: {}", refused.err);
    }
    let file = dir.path().join("scoped.token");
    fs::write(&file, made["token"].as_str().unwrap()).unwrap();
    let (free_line, free) = token(dir.path(), "admin");
    let tokens = dir.path().join("tokens");
    fs::write(&tokens, format!("{line}  # tenant 7\n{free_line}\n")).unwrap();
    let mut server = Server::new(1, dir.path());
    server.spawn(&["--init", "--set", "groups=1", "--set", &format!("auth.tokens={}", tokens.display())]);
    let with =
        |token: &Path, args: &[&str]| run(&[args, &["--token-file", token.to_str().unwrap()]].concat());
    let client = server.client.clone();
    let named = |name: &str| format!("{client}/{name}");
    wait("it leads", || (with(&free, &["status", &client, "--json"]).json()["leader"] == 1).then_some(()));
    with(&free, &["logs", "create", &client, "secret", "whole"]).ok();

    let records = dir.path().join("records");
    fs::write(&records, "one\ntwo\n").unwrap();
    let records = records.to_str().unwrap();
    with(&file, &["logs", "create", &client, "tenant-7/0"]).ok();
    for name in ["tenant-7/0", "whole"] {
        with(&file, &["append", &named(name), "--lines", records]).ok();
        assert_eq!(with(&file, &["read", &named(name)]).ok().out, "one\ntwo\n");
        assert_eq!(with(&file, &["info", &named(name), "--json"]).ok().json()["last"], 2);
    }
    let listed = with(&file, &["logs", "list", &client, "--json"]).ok().out;
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(listed.contains("tenant-7/0") && !listed.contains("secret"), "{listed}");
    with(&file, &["logs", "seal", &client, "tenant-7/0"]).ok();
    with(&file, &["logs", "delete", &client, "tenant-7/0", "--yes"]).ok();

    let (secret, none) = (named("secret"), named("none"));
    for (args, word) in [
        (&["read", &secret][..], "\"secret\""),
        (&["read", &none], "\"none\""),
        (&["info", &secret], "\"secret\""),
        (&["append", &secret, "--lines", records], "\"secret\""),
        (&["discard", &secret, "1"], "\"secret\""),
        (&["logs", "create", &client, "other"], "\"other\""),
        (&["logs", "create", &client, "whole-3", "--beside", "secret"], "\"secret\""),
        (&["logs", "seal", &client, "secret"], "\"secret\""),
        (&["logs", "delete", &client, "secret", "--yes"], "\"secret\""),
        (&["logs", "list", &client, "--prefix", "se"], "\"se\""),
        (&["read", &client], "\"default\""),
        (&["append", &client, "--lines", records], "\"default\""),
        (&["info", &client], "\"default\""),
        (&["options", &client], "a token without a scope"),
    ] {
        let refused = with(&file, args);
        assert!(
            refused.code == 2 && refused.err.contains(word),
            "{args:?}: {} {}",
            refused.code,
            refused.err
        );
        assert!(refused.err.contains("begin with tenant-7/,whole;"), "{args:?}: {}", refused.err);
    }
    // A file with a wrong line changes nothing; then the scope is smaller.
    fs::write(&tokens, format!("{free_line}\n{line},_x\n")).unwrap();
    server.hang_up();
    let word = "tokens: line 2: prefix 3 of the scope begins with _";
    wait("the log reports it", || server.said().contains(word).then_some(()));
    with(&file, &["read", &named("whole")]).ok();
    fs::write(&tokens, format!("{free_line}\n{}\n", line.replace(",whole", ""))).unwrap();
    server.hang_up();
    wait("the log is refused", || (with(&file, &["read", &named("whole")]).code == 2).then_some(()));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn limits_come_from_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init", "--set", "limits.connections_max=2", "--set", "limits.idle_seconds=1"]);
    let first = TcpStream::connect(&server.client).unwrap();
    let second = TcpStream::connect(&server.client).unwrap();
    let count = |reason: &str| {
        let wanted = format!("chiplog_refused_total{{reason=\"{reason}\"}} ");
        let figures = server.page("/metrics").1;
        figures.lines().find_map(|l| l.strip_prefix(&wanted)).unwrap().parse::<f64>().unwrap()
    };
    wait("one connection is too many", || {
        drop(TcpStream::connect(&server.client).unwrap());
        (count("connections") >= 1.0).then_some(())
    });
    assert!(server.said().contains("too many connections"));
    // Each new connection closed the oldest one without a token; now these two are open.
    drop((first, second));
    let first = TcpStream::connect(&server.client).unwrap();
    let second = TcpStream::connect(&server.client).unwrap();
    for mut stream in [&first, &second] {
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    }
    wait("they are closed as idle", || (count("idle") >= 2.0).then_some(()));
    drop((first, second));
    wait("a connection is possible again", || {
        (run(&["status", &server.client, "--json"]).json()["leader"] == 1).then_some(())
    });
}

#[test]
fn connections_of_an_address_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init", "--set", "limits.connections_per_address_max=2"]);
    let held = [(); 2].map(|()| TcpStream::connect(&server.client).unwrap());
    wait("one connection is too many", || {
        drop(TcpStream::connect(&server.client).unwrap());
        let figures = server.page("/metrics").1;
        let wanted = "chiplog_refused_total{reason=\"connections_per_address\"} ";
        let count: f64 = figures.lines().find_map(|l| l.strip_prefix(wanted)).unwrap().parse().unwrap();
        (count >= 1.0).then_some(())
    });
    drop(held);
    assert_eq!(server.stop(), Some(0));
}

/// A client that watched the health of a server delayed its shutdown to the limit.
#[test]
fn health_watcher_sees_the_shutdown_and_does_not_delay_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut watched = runtime.block_on(async {
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.client)).unwrap();
        let mut client = HealthClient::new(channel.connect().await.unwrap());
        let mut watched = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
        assert!(watched.message().await.unwrap().is_some());
        watched
    });
    assert_eq!(server.stop(), Some(0));
    let last = runtime.block_on(async {
        let mut last = None;
        while let Ok(Some(message)) = watched.message().await {
            last = Some(message.status());
        }
        last
    });
    assert_eq!(last, Some(ServingStatus::NotServing));
    assert!(!server.said().contains("streams of clients did not end"), "{}", server.said());
}

/// A connection for probes serves one request in a limited time; up to 64 are open.
#[test]
fn probe_connections_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init"]);
    let idle: Vec<TcpStream> = (0..70).map(|_| TcpStream::connect(&server.http).unwrap()).collect();
    assert_eq!(server.page("/livez").0, 200);
    // The oldest ones were closed for new ones; the others are closed when their time is up.
    for mut stream in idle {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0); // retries after signals
    }
    let mut stream = TcpStream::connect(&server.http).unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    assert_eq!(server.stop(), Some(0));
}

/// Every client could watch a server's health without a token, with as many streams as a connection may have.
#[test]
fn health_is_watched_within_the_limit_of_calls() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init", "--set", "limits.streams_total_max=40"]);
    let figure = |name: &str| -> f64 {
        let figures = server.page("/metrics").1;
        figures
            .lines()
            .find_map(|l| l.strip_prefix(name))
            .unwrap_or_else(|| panic!("{name}"))
            .trim()
            .parse()
            .unwrap()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let watched = runtime.block_on(async {
        let at = tonic::transport::Endpoint::from_shared(format!("http://{}", server.client)).unwrap();
        let channel = at.connect().await.unwrap();
        let mut watched = Vec::new();
        for n in 0..15 {
            let mut client = HealthClient::new(channel.clone());
            match client.watch(HealthCheckRequest::default()).await {
                Ok(stream) => watched.push(stream.into_inner()),
                Err(status) => {
                    assert!(n >= 10, "{n} of an address that may have 10: {status}");
                    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
                    assert!(status.message().contains("of this address"), "{status}");
                }
            }
        }
        watched
    });
    assert_eq!(watched.len(), 10);
    assert!(figure("chiplog_refused_total{reason=\"streams\"}") >= 5.0);
    assert_eq!(figure("chiplog_calls "), 10.0);
    drop(watched);
    wait("the streams are released", || (figure("chiplog_calls ") == 0.0).then_some(()));
    let (memory, connections) = (figure("chiplog_memory_max_bytes "), figure("chiplog_connections_max "));
    assert!(memory > 1e9 && connections <= 4096.0, "{memory} {connections}");
    assert_eq!(server.stop(), Some(0));
}

/// The limit of connections ignored the limit of open files, so that the log had no descriptors left.
#[test]
fn connections_follow_the_limit_of_open_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    let limited = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = limited.maximum.unwrap_or(1 << 20).min(1 << 20);
    server.start(&["--init", "--set", &format!("limits.connections_max={wanted}")]);
    let figures = server.page("/metrics").1;
    let shown = figures.lines().find_map(|l| l.strip_prefix("chiplog_connections_max ")).unwrap();
    let shown: f64 = shown.parse().unwrap();
    match limited.maximum {
        Some(maximum) if maximum < wanted + 1024 => {
            assert_eq!(shown as u64, maximum - 1024.min(maximum / 2));
            assert!(server.said().contains("too few open files"));
        }
        _ => assert_eq!(shown as u64, wanted),
    }
    assert_eq!(server.stop(), Some(0));
}

/// Each unread stream took 230 KB beyond its budget, and new streams took as much again.
#[test]
fn memory_of_unread_streams_is_bounded_and_reused() {
    const CONNECTIONS: usize = 5;
    const STREAMS: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init", "--set", "limits.answer_bytes_max=256MiB"]);
    let figure = |name: &str| -> u64 {
        let figures = server.page("/metrics").1;
        figures.lines().find_map(|l| l.strip_prefix(name)).unwrap().trim().parse::<f64>().unwrap() as u64
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut client = LogClient::connect(format!("http://{}", server.client)).await.unwrap();
        let requests = tokio_stream::iter((1..=8).map(|n| AppendRequest::new(n, vec![[7; 1000]; 1000])));
        let mut answers = client.append(requests).await.unwrap().into_inner();
        while answers.message().await.unwrap().is_some() {}
    });
    let before = server.resident_bytes();
    let mut after = Vec::new();
    for round in 0..3 {
        let held = runtime.block_on(async {
            let mut held = Vec::new();
            for _ in 0..CONNECTIONS {
                let at =
                    tonic::transport::Endpoint::from_shared(format!("http://{}", server.client)).unwrap();
                let channel = at.initial_stream_window_size(1 << 20).connect().await.unwrap();
                for _ in 0..STREAMS {
                    let mut client = LogClient::new(channel.clone()).max_decoding_message_size(1 << 30);
                    held.push(client.read(ReadRequest { next_index: 1 }).await.unwrap());
                }
            }
            held
        });
        wait("they reach their limit", || (figure("chiplog_answers_waiting ") > 100).then_some(()));
        let (during, answers) = (server.resident_bytes(), figure("chiplog_answer_bytes "));
        assert!(answers <= 64 << 20, "{answers} bytes of answers of one address");
        drop(held);
        wait("the streams are released", || (figure("chiplog_calls ") == 0).then_some(()));
        wait("the connections end", || (figure("chiplog_connections ") == 0).then_some(()));
        after.push(server.resident_bytes());
        println!(
            "{round}: {} MiB before, {} during, {} after",
            before >> 20,
            during >> 20,
            after[round] >> 20
        );
        // The answers, and the memory of a stream without them.
        assert!(during <= before + (64 << 20) + ((CONNECTIONS * STREAMS) as u64) * (128 << 10), "{during}");
    }
    assert!(after[2] <= after[0] + (16 << 20), "{before} bytes before, {after:?} after");
    assert_eq!(server.stop(), Some(0));
}
