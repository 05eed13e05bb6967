//! TLS: servers and clients that trust each other's certificates, and others that do not.

use crate::certificates::Authority;
use crate::harness::{Server, chiplog, made_by, run, wait};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, ServerTlsConfig};

/// A copy that runs until it is dropped.
struct Copy(Child);

impl Drop for Copy {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).unwrap();
    }
}

/// Starts a copy. Returns its listening address.
fn copy(dir: &str, cluster: &str, authority: &Authority, more: &[String]) -> (Copy, String) {
    let mut command = chiplog();
    command.args(["follow", dir, "--cluster", cluster, "--json"]).args(authority.client()).args(more);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let opened: serde_json::Value = serde_json::from_str(&line).unwrap();
    (Copy(child), opened["listen"].as_str().unwrap_or_default().to_owned())
}

/// A server with an expired certificate, which a chiplog server refuses to be. It serves until the runtime is
/// dropped.
fn expired_server(authority: &Authority) -> (String, Runtime) {
    authority.sign_expired(9);
    let [pem, key] = ["9.pem", "9.key"].map(|name| fs::read(authority.file(name)).unwrap());
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let at = listener.local_addr().unwrap().to_string();
    runtime.spawn(async move {
        let tls = ServerTlsConfig::new().identity(Identity::from_pem(pem, key));
        let (_, health) = tonic_health::server::health_reporter();
        let server = tonic::transport::Server::builder().tls_config(tls).unwrap().add_service(health);
        server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
    });
    (at, runtime)
}

#[test]
fn only_clients_and_peers_with_certificates_connect() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "other"));
    (1..=3).for_each(|node| _ = (ours.sign(node), other.sign(node)));
    let with = |authority: &Authority, args: &[&str]| {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).chain(authority.client()).collect();
        run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut servers: Vec<Server> = (1..=3).map(|node| Server::new(node, dir.path())).collect();
    for (n, server) in servers.iter_mut().enumerate() {
        // The other replicas do not trust the certificate of the third.
        let settings = ours.settings(n as u64 + 1, if n == 2 { &other } else { &ours });
        server.spawn(&settings.iter().map(String::as_str).collect::<Vec<_>>());
        wait("the server answers", || {
            let shown = with(&ours, &["status", &server.client, "--json"]).json();
            (shown["replicas"][0]["role"] == "waiting").then_some(())
        });
    }
    let [first, second, third] = &servers[..] else { unreachable!() };
    with(&ours, &["member", "init", &first.client]).ok();
    let add = ["member", "add", &second.client, "--cluster", &first.client, "--promote"];
    made_by(|| with(&ours, &add), None);
    let shown = with(&ours, &["status", &second.client, "--json"]).ok().json();
    assert_eq!(shown["replicas"].as_array().unwrap().len(), 2, "{shown}");

    // The commands that also work on a directory use TLS, too.
    let cluster = format!("{},{}", first.client, second.client);
    with(&ours, &["append", &cluster, "--lines", &ours.file("1.pem")]).ok();
    let read = with(&ours, &["read", &cluster]).ok();
    assert_eq!(read.out, fs::read_to_string(ours.file("1.pem")).unwrap());
    let bare = run(&["info", &cluster]);
    assert_eq!(bare.code, 2, "without certificates");
    assert!(bare.err.trim_end().ends_with("; give --tls-authority or CHIPLOG_TLS_AUTHORITY"), "{}", bare.err);

    // So does a copy, in both directions: it receives the log, and sends it to another copy.
    let copies = [dir.path().join("copy"), dir.path().join("second")].map(|p| p.to_str().unwrap().to_owned());
    let listening = [
        ["--listen", "127.0.0.1:0"].map(str::to_owned),
        ["--listen-certificate".to_owned(), ours.file("1.pem")],
        ["--listen-key".to_owned(), ours.file("1.key")],
        ["--listen-authority".to_owned(), ours.file("authority.pem")],
    ];
    let (first_copy, at) = copy(&copies[0], &cluster, &ours, listening.as_flattened());
    let (second_copy, _) = copy(&copies[1], &at, &ours, &[]);
    for copied in &copies {
        wait("the copy has the records", || (run(&["read", copied]).out == read.out).then_some(()));
    }
    let bare = ["--cluster", &at, "--tls-authority", &ours.file("authority.pem")];
    let none = run(&[&["follow", dir.path().join("none").to_str().unwrap()][..], &bare].concat());
    assert_eq!(none.code, 5, "without a certificate: {}", none.err);
    drop((first_copy, second_copy));

    // It works neither without certificates nor with those of another authority.
    assert_eq!(run(&["status", &first.client, "--json"]).json()["replicas"][0]["role"], "unreachable");
    let authority = ours.file("authority.pem");
    let bare = run(&["status", &first.client, "--json", "--tls-authority", &authority]).json();
    assert_eq!(bare["replicas"][0]["role"], "unreachable", "a client without a certificate: {bare}");
    let foreign = with(&other, &["status", &first.client, "--json"]).json();
    assert_eq!(foreign["replicas"][0]["role"], "unreachable");

    // A peer that is not trusted receives nothing: it does not catch up and cannot vote.
    made_by(|| with(&ours, &["member", "add", &third.client, "--cluster", &first.client]), None);
    let refused = with(&ours, &["member", "promote", "3", "--cluster", &first.client, "--timeout", "2"]);
    assert_eq!(refused.code, 5, "{}", refused.err);
    let shown = with(&ours, &["status", &third.client, "--json"]).json();
    assert_eq!(shown["replicas"][0]["last_raft"], 0, "{shown}");
    // Both sides log the reason; it was reported like any failed connection.
    for (server, what) in [
        (first, "cannot connect to a peer: TLS handshake failed"),
        (third, "TLS handshake failed: a certificate was rejected"),
    ] {
        wait("it warns", || {
            let said = server.said();
            let warned = said.lines().any(|line| line.contains(" WARN ") && line.contains(what));
            warned.then_some(())
        });
    }
}

/// A client without TLS got "h2 protocol error: http2 error", a client with unwanted TLS
/// "InvalidContentType".
#[test]
fn error_of_mismatched_tls_names_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "other"));
    ours.sign(1);
    let (mut secured, mut plain) = (Server::new(1, dir.path()), Server::new(2, dir.path()));
    let set = |key: &str, file: &str| ["--set".to_owned(), format!("{key}={}", ours.file(file))];
    let settings = [set("tls.certificate", "1.pem"), set("tls.key", "1.key")].concat();
    secured.spawn(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    plain.spawn(&[]);
    let [ours, other] = [&ours, &other].map(|authority| authority.file("authority.pem"));
    wait("both answer", || {
        let with = run(&["status", &secured.client, "--json", "--tls-authority", &ours]).json();
        let without = run(&["status", &plain.client, "--json"]).json();
        [with, without].iter().all(|shown| shown["replicas"][0]["role"] == "waiting").then_some(())
    });
    for (server, authority, advice) in [
        (&secured, None, "; give --tls-authority or CHIPLOG_TLS_AUTHORITY"),
        (&plain, Some(&ours), "leave out --tls-authority and CHIPLOG_TLS_AUTHORITY"),
        (
            &secured,
            Some(&other),
            "--tls-authority has to be the authority that signed the server's certificate (tls.certificate)",
        ),
    ] {
        let tls = authority.map(|file| ["--tls-authority", file]);
        let with = |command: &[&str]| run(&[command, tls.as_ref().map_or(&[][..], |tls| &tls[..])].concat());
        let shown = with(&["status", &server.client, "--json"]);
        assert_eq!(shown.code, 2);
        let shown = shown.json();
        let why = shown["replicas"][0]["error"].as_str().unwrap().to_owned();
        assert!(why.ends_with(advice), "{why}");
        let words = with(&["status", &server.client]).out;
        assert!(words.starts_with("log unknown; leader unknown\n"), "{words}");
        // The exit code said that the command could work later.
        for args in [
            &["member", "init", &server.client][..],
            &["member", "promote", "1", "--cluster", &server.client],
            &["read", &server.client],
        ] {
            let refused = with(args);
            assert_eq!(refused.code, 2, "{args:?}: {}", refused.err);
            assert!(refused.err.trim_end().ends_with(advice), "{}", refused.err);
            assert!(!refused.err.contains("`tls`"), "a command has no such option: {}", refused.err);
        }
    }
    // At a port of peers or probes, the advice to leave out --tls-authority alone would have exposed the
    // token to everyone.
    for port in [&plain.peer, &plain.http] {
        let refused = run(&["info", port, "--tls-authority", &ours]);
        assert!(
            refused.code == 2 && refused.err.contains("address for clients (listen.client)?"),
            "{}",
            refused.err
        );
    }
}

/// A server with an expired certificate was `unreachable`, with the reason "invalid peer certificate", which
/// is not `tls.peer_*`.
#[test]
fn expired_certificate_of_a_server_locks_out() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    ours.sign(1);
    let mut server = Server::new(1, dir.path());
    let set = |key: &str, file: &str| ["--set".to_owned(), format!("{key}={}", ours.file(file))];
    let settings = [set("tls.certificate", "1.pem"), set("tls.key", "1.key")].concat();
    server.spawn(&settings.iter().map(String::as_str).chain(["--init"]).collect::<Vec<_>>());
    let authority = ours.file("authority.pem");
    let with =
        |server: &str, command: &[&str]| run(&[command, &[server, "--tls-authority", &authority]].concat());
    wait("it leads", || (with(&server.client, &["status"]).code == 0).then_some(()));
    let (expired, _serving) = expired_server(&ours);
    let shown = with(&expired, &["status", "--json"]);
    let replica = &shown.json()["replicas"][0];
    assert_eq!((shown.code, replica["state"].as_str()), (1, Some("locked_out")), "{replica}");
    for command in ["status", "read", "info"] {
        let ran = with(&expired, &[command]);
        let said = format!("{}{}", ran.out, ran.err);
        assert!(
            ran.code == 1
                && said.contains("certificate expired at 2022-01-01T00:00:00Z; this machine's time is 2"),
            "{said}"
        );
        assert!(!said.contains("peer certificate"), "{said}");
    }
    // A host name that is not in the certificate: the options are wrong.
    let port = server.client.rsplit_once(':').unwrap().1;
    let named = format!("localhost:{port}");
    let ran = with(&named, &["read"]);
    assert!(ran.code == 2 && ran.err.contains("does not name the host"), "{} {}", ran.code, ran.err);
}

/// A server started with the peer certificate of another node, and no other replica accepted it as a member.
/// If it gets such a certificate while it runs, it keeps its own.
#[test]
fn server_needs_a_certificate_that_names_its_node() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    (1..=3).for_each(|node| ours.sign(node));
    let with = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).chain(ours.client()).collect();
        run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let start = |server: &mut Server| {
        let settings = ours.settings(server.node, &ours);
        server.spawn(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    };
    let answers = |server: &Server| {
        wait("the server answers", || {
            let shown = with(&["status", &server.client, "--json"]).json();
            (shown["replicas"][0]["role"] == "waiting").then_some(())
        });
    };
    let mut servers: Vec<Server> = (1..=2).map(|node| Server::new(node, dir.path())).collect();
    start(&mut servers[0]);
    // The second server gets the certificate of the third.
    let files = |node: u64| [ours.file(&format!("{node}.pem")), ours.file(&format!("{node}.key"))];
    let own = files(2);
    let keep = own.clone().map(|file| fs::read(file).unwrap());
    let put = |contents: [&[u8]; 2]| {
        own.iter().zip(contents).for_each(|(file, content)| fs::write(file, content).unwrap())
    };
    let others = files(3).map(|file| fs::read(file).unwrap());
    put([&others[0], &others[1]]);
    start(&mut servers[1]);
    assert_eq!(servers[1].ended(), Some(2), "{}", servers[1].said());
    let said = servers[1].said();
    assert!(said.contains("tls.peer_certificate") && said.contains("does not name node-2"), "{said}");
    put([&keep[0], &keep[1]]);
    start(&mut servers[1]);
    servers.iter().for_each(answers);
    let [first, second] = &servers[..] else { unreachable!() };

    // While it runs: the name of another node, and a key without its certificate. Each is reported and
    // changes nothing. The same files serve clients, for whom any of these names is accepted, and replicas.
    let broken = |things: u64| {
        let line = format!("\nchiplog_reload_broken {things}");
        wait("the metrics report it", || second.page("/metrics").1.contains(&line).then_some(()));
    };
    put([&others[0], &others[1]]);
    second.hang_up();
    wait("the log reports it", || second.said().contains("reload failed").then_some(()));
    broken(1);
    put([&others[0], &keep[1]]);
    second.hang_up();
    broken(2);
    with(&["member", "init", &first.client]).ok();
    made_by(|| with(&["member", "add", &second.client, "--cluster", &first.client, "--promote"]), None);
    put([&keep[0], &keep[1]]);
    second.hang_up();
    broken(0);
}

/// An expired certificate replaced a valid one, and all clients were locked out.
#[test]
fn expired_certificate_never_replaces_a_valid_one() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    ours.sign(1);
    let mut server = Server::new(1, dir.path());
    let settings = ours.settings(1, &ours);
    server.spawn(&settings.iter().map(String::as_str).chain(["--init"]).collect::<Vec<_>>());
    let [authority, client, key] = ["authority.pem", "2.pem", "2.key"].map(|name| ours.file(name));
    ours.sign(2);
    let flags = ["--tls-authority", &authority, "--tls-certificate", &client, "--tls-key", &key];
    let gets_in = || run(&[&["status", &server.client][..], &flags].concat()).code == 0;
    wait("it leads", || gets_in().then_some(()));
    let expires = |key: &str| -> f64 {
        let text = server.page("/metrics").1;
        let series = format!("chiplog_certificate_expires_timestamp_seconds{{certificate=\"{key}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap()
    };
    let before = ["tls.certificate", "tls.peer_certificate"].map(expires);
    assert_eq!(before, [67_090_118_400.0; 2], "the first day of the year 4096");

    ours.sign_expired(1);
    server.hang_up();
    let why = "expired at 2022-01-01T00:00:00Z";
    wait("the log reports it", || (server.said().matches(why).count() >= 2).then_some(()));
    wait("the metrics report it", || {
        server.page("/metrics").1.contains("\nchiplog_reload_broken 2").then_some(())
    });
    assert_eq!(["tls.certificate", "tls.peer_certificate"].map(expires), before);
    assert!(gets_in());
}
