//! Servers whose older records are in an object store: what they store, what goes from their disks, what clients read, and what
//! an outage of the store does.

use crate::follow::Copy;
use crate::harness::{
    PATIENCE, Ran, Server, clients, fed, founded_with, leader, leader_of, made, run, runtime, started,
    vote_in_groups, wait,
};
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use chiplog_net::wire::proto::logspec::{ReadRequest, read_reply};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const RECORD_BYTES: usize = 1000;

fn line(n: u64) -> String {
    let mut line = format!("record {n} ");
    while line.len() < RECORD_BYTES {
        line.push((b'a' + ((n * 7 + line.len() as u64) % 26) as u8) as char);
    }
    line
}

pub(crate) fn lines(first: u64, last: u64) -> String {
    (first..=last).map(|n| line(n) + "\n").collect()
}

/// The arguments of a server with small objects at `store`. A block is smaller: on a busy machine larger ones would fill few objects.
fn arguments(store: &Path) -> Vec<String> {
    let mut all = vec!["--object-store".to_owned(), format!("file://{}", store.display())];
    let blocks = "log.block_bytes_max=128KiB";
    for set in [blocks, "objects.object_bytes=256KiB", "objects.local_bytes=2MiB", "objects.cache_bytes=8MiB"]
    {
        all.extend(["--set".to_owned(), set.to_owned()]);
    }
    all
}

fn append(servers: &[Server], first: u64, last: u64) {
    let all: Vec<&str> = servers.iter().filter(|s| s.is_running()).map(|s| s.client.as_str()).collect();
    fed(&["append", &all.join(",")], &lines(first, last)).ok();
}

/// Reads every record from this server alone; `chiplog read` may choose another one.
pub(crate) fn reads_all(server: &Server, last: u64) {
    wait("it has the last record", || {
        let told = run(&["info", &server.client, "--stale", "--json"]).json();
        (told["last"].as_u64()? >= last && told["first"].as_u64()? == 1).then_some(())
    });
    let read = async {
        let mut log = LogClient::connect(format!("http://{}", server.client)).await.unwrap();
        let mut replies = log.read(ReadRequest { next_index: 1 }).await.unwrap().into_inner();
        let mut next = 1;
        while next <= last {
            let reply = replies.message().await.unwrap().unwrap();
            let Some(read_reply::Reply::Ok(ok)) = reply.reply else { panic!("{reply:?}") };
            for entry in ok.entries.into_iter().filter(|entry| !entry.skip) {
                assert_eq!(entry.index, next, "node {}", server.node);
                assert!(entry.data == line(next).as_bytes(), "record {next} of node {}", server.node);
                next += 1;
            }
        }
    };
    runtime().block_on(async { tokio::time::timeout(PATIENCE, read).await.unwrap() });
}

fn segments(server: &Server) -> usize {
    segments_in(&server.data)
}

fn segments_in(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".seg")).count()
}

/// The value of a series.
fn value(server: &Server, series: &str) -> f64 {
    let text = server.page("/metrics").1;
    let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_else(|| panic!("no {series} in {text}"))
}

#[test]
fn older_records_are_read_from_the_object_store_and_a_lost_disk_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let arguments = arguments(&store);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut servers = founded_with((1..=3).map(|n| Server::new(n, dir.path())).collect(), &arguments);
    append(&servers, 1, 12_000);
    wait("objects are stored", || {
        let stored: f64 = servers.iter().map(|s| value(s, "chiplog_stored_bytes_total")).sum();
        (stored > 10e6).then_some(())
    });
    // Files go when another segment begins.
    let mut last = 12_000;
    wait("files go", || {
        append(&servers, last + 1, last + 500);
        last += 500;
        servers.iter().all(|s| segments(s) <= 8).then_some(())
    });
    for server in &servers {
        reads_all(server, last);
        assert!(value(server, "chiplog_fetched_bytes_total") > 4e6, "node {}", server.node);
        assert!(value(server, "chiplog_cached_bytes") > 0.0);
        assert!(value(server, "chiplog_unstored_bytes") < 4e6);
        assert_eq!(value(server, "chiplog_object_failures_total"), 0.0);
    }
    let info = run(&["info", &servers[0].client, "--json"]).ok().json();
    assert_eq!(info["in_object_store"]["first"].as_u64(), Some(info["first"].as_u64().unwrap()), "{info}");
    assert!((1000..last).contains(&info["in_object_store"]["last"].as_u64().unwrap()), "{info}");
    let part = dir.path().join("part");
    let backed = run(&["backup", &servers[0].client, part.to_str().unwrap(), "--json"]).ok().json();
    let told =
        format!("records 1 to {} are in the object store alone", backed["first"].as_u64().unwrap() - 1);
    assert!(backed["notes"].to_string().contains(&told), "{backed}");
    let options = run(&["options", &servers[0].client, "--json"]).ok().json();
    assert_eq!(options["options"]["object_bytes"], 256 << 10, "{options}");

    let location = store.to_str().unwrap();
    let listed = run(&["tier", "list", location, "--json"]).ok().json();
    assert!(listed["objects"].as_u64().unwrap() > 30, "{listed}");
    let verified = run(&["tier", "verify", location, "--json"]).ok().json();
    assert_eq!((&verified["ok"], &verified["logs"][0]["first"]), (&true.into(), &1.into()), "{verified}");

    for (name, store) in [("copy", location), ("copy2", "servers")] {
        copy_reads_objects(&servers, store, &dir.path().join(name), last);
    }
    let served: f64 = servers.iter().map(|s| value(s, "chiplog_copies_objects_bytes_total")).sum();
    assert!(served > 4e6, "{served} bytes of objects for the second copy");
    copy_options_are_checked(&servers, location);

    // The disk of a server is lost. Another server takes its place.
    let node = leader(&servers.iter().collect::<Vec<_>>());
    let lost = servers.iter().position(|s| s.node != node).unwrap();
    servers[lost].kill();
    fs::remove_dir_all(&servers[lost].data).unwrap();
    let gone = servers.remove(lost).node;
    let mut new = Server::new(4, dir.path());
    new.start(&arguments);
    let there = &servers[0].client;
    made(&["member", "add", &new.client, "--cluster", there, "--promote"]);
    made(&["member", "remove", &gone.to_string(), "--cluster", there]);
    reads_all(&new, last);
    assert!(value(&new, "chiplog_fetched_bytes_total") > 4e6);
    servers.push(new);
    append(&servers, last + 1, last + 100);
    reads_all(&servers[2], last + 100);
}

/// Groups of named logs have objects of their own: files go, each log is read from the store, and the commands find all of it.
#[test]
fn older_records_of_named_logs_are_read_from_the_object_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mut arguments = arguments(&store);
    arguments.extend(["--init", "--set", "groups=1"].map(str::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut server = Server::new(1, dir.path());
    server.start(&arguments);
    let names = ["orders", "payments", "visits"];
    let logs: Vec<String> = names.iter().map(|name| format!("{}/{name}", server.client)).collect();
    run(&["logs", "create", &server.client, names[0], names[1], names[2]]).ok();
    let group = server.data.join("named/group-1");
    let mut last = 0;
    wait("objects are stored, and files go", || {
        let stored =
            |what: &str| value(&server, &format!("chiplog_group_stored_{what}_total{{group=\"1\"}}"));
        let is_stored = stored("bytes") > 6e6 && stored("objects") > 20.0;
        let is_first_gone = !group.join("00000000000000000001.seg").exists();
        if is_stored && is_first_gone && segments_in(&group) <= 8 {
            return Some(());
        }
        // Files go when another segment begins: small pieces leave the store time to have what was before.
        let more = if last < 3000 { 1000 } else { 100 };
        for log in &logs {
            fed(&["append", log], &lines(last + 1, last + more)).ok();
        }
        last += more;
        None
    });
    for log in &logs {
        let read = run(&["read", log]).ok().out;
        assert!(read == lines(1, last), "{} bytes are read of {log}", read.len());
    }
    assert!(value(&server, "chiplog_group_fetched_bytes_total{group=\"1\"}") > 1e6);
    assert!(value(&server, "chiplog_group_unstored_bytes{group=\"1\"}") < 4e6);
    assert_eq!(value(&server, "chiplog_group_damaged_objects{group=\"1\"}"), 0.0);
    let location = store.to_str().unwrap();
    copies_of_one_log_read_objects(&[&server], names[1], location, dir.path(), last);
    let listed = run(&["tier", "list", location]).ok().out;
    assert_eq!(listed.lines().count(), 4, "a head, the default log, the catalogue and the group: {listed}");
    let verified = run(&["tier", "verify", location, "--json"]).ok().json();
    let of_group = verified["logs"].as_array().unwrap().iter().max_by_key(|log| log["objects"].as_u64());
    let of_group = of_group.unwrap();
    assert!(verified["ok"] == true && of_group["objects"].as_u64().unwrap() > 20, "{verified}");
    // A byte of an object is another one: the command names the object. A server that runs would store it again.
    server.stop();
    let id = of_group["log_id"].as_str().unwrap();
    let found = fs::read_dir(store.join(id).join("o")).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let in_a_record = bytes.windows(7).position(|bytes| bytes == b"record ")?;
        bytes.starts_with(b"CHIPSORT").then_some((path, bytes, in_a_record))
    });
    let (object, right, in_a_record) = found.unwrap();
    let number: u64 = object.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let verified_with = |at: usize| {
        let mut changed = right.clone();
        changed[at] ^= 4;
        fs::write(&object, changed).unwrap();
        let verified = run(&["tier", "verify", location, "--log-id", id, "--json"]);
        let fault = &verified.json()["logs"][0]["faults"][0];
        assert_eq!(fault["object"], number, "{fault}");
        (verified.code, fault["severity"].as_str().unwrap().to_owned())
    };
    assert_eq!(verified_with(in_a_record), (3, "corrupt".to_owned()));
    let fetched =
        run(&["tier", "fetch", location, dir.path().join("damaged").to_str().unwrap(), "--log-id", id]);
    let name = format!("{id}/o/{number:020}");
    assert!(fetched.code == 3 && fetched.err.contains(&name), "{}", fetched.err);
    assert!(fetched.err.contains("chiplog tier verify"), "{}", fetched.err);
    // No record depends on the zeros before the last page.
    let skeleton_end = u32::from_le_bytes(right[76..80].try_into().unwrap());
    assert_eq!(verified_with(skeleton_end as usize), (0, "harmless".to_owned()));
    fs::write(&object, right).unwrap();
    let backup = dir.path().join("backup");
    let backup = backup.to_str().unwrap();
    run(&["tier", "fetch", location, backup, "--log-id", id]).ok();
    let again = dir.path().join("again");
    run(&["restore", backup, again.to_str().unwrap(), "--keep-log-id"]).ok();
    run(&["verify", again.to_str().unwrap()]).ok();
}

/// The status was `ok` while reads failed, and their errors said that the status shows the damage. `tier status` said that the log has no
/// records, with status 0.
#[test]
fn lost_object_of_a_group_shows_in_the_status() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mut arguments = arguments(&store);
    arguments.extend(["--init", "--set", "groups=1"].map(str::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut server = Server::new(1, dir.path());
    server.start(&arguments);
    let (client, log) = (server.client.clone(), format!("{}/orders", server.client));
    run(&["logs", "create", &client, "orders"]).ok();
    let oldest = server.data.join("named/group-1/00000000000000000001.seg");
    let mut last = 0;
    wait("files go", || {
        fed(&["append", &log], &lines(last + 1, last + 500)).ok();
        last += 500;
        (!oldest.exists()).then_some(())
    });
    let status = || run(&["status", &client, "--json"]);
    let told = status().ok().json();
    assert_eq!((&told["ok"], &told["replicas"][0]["damaged_objects"]), (&true.into(), &0.into()), "{told}");
    assert_eq!(server.stop(), Some(0));

    let location = store.to_str().unwrap();
    let listed = run(&["tier", "list", location, "--json"]).ok().out;
    let logs = listed.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let group = logs.into_iter().find(|log| log["role"] == "group-1").unwrap();
    let id = group["log_id"].as_str().unwrap();
    let object = store.join(id).join("o/00000000000000000000");
    let aside = dir.path().join("aside");
    fs::rename(&object, &aside).unwrap();
    server.start(&arguments);
    let failed = run(&["read", &log]);
    assert_eq!(failed.code, 3, "{}", failed.err);
    assert!(failed.err.contains("`chiplog status` shows the damage"), "{}", failed.err);
    let told = wait("the status shows the damage", || {
        let told = status();
        (told.json()["replicas"][0]["state"] == "damaged_objects").then_some(told)
    });
    let shown = told.json();
    let replica = &shown["replicas"][0];
    assert_eq!(
        (told.code, &shown["ok"], &replica["damaged_objects"]),
        (3, &false.into(), &1.into()),
        "{shown}"
    );
    assert!(replica["why"].as_str().unwrap().starts_with("1 object is lost or damaged"), "{replica}");

    let told = run(&["tier", "status", location, "--log-id", id]);
    assert_eq!(told.code, 3, "{}", told.out);
    assert!(told.out.contains("1 object is MISSING"), "{}", told.out);
    assert!(told.out.contains("which records there are is not known"), "{}", told.out);
    assert!(!told.out.contains("no records"), "{}", told.out);
    let verified = run(&["tier", "verify", location, "--log-id", id]);
    assert_eq!(verified.code, 3, "{}", verified.out);
    assert!(verified.out.contains("Restart the servers now without local_bytes"), "{}", verified.out);

    assert_eq!(server.stop(), Some(0));
    fs::rename(&aside, &object).unwrap();
    server.start(&arguments);
    assert!(run(&["read", &log]).ok().out == lines(1, last));
    status().ok();
    run(&["tier", "status", location]).ok();
}

/// Three servers store the objects of named logs, also after one was killed. Copies read them, and a backup in the store has all logs.
#[test]
fn named_logs_of_three_servers_are_copied_and_backed_up_from_the_object_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mut arguments = arguments(&store);
    arguments.extend(["--set", "groups=1"].map(str::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut servers = founded_with((1..=3).map(|n| Server::new(n, dir.path())).collect(), &arguments);
    vote_in_groups(&servers, 1);
    let all = clients(&servers.iter().collect::<Vec<_>>());
    let names = ["orders", "payments", "visits"];
    run(&[&["logs", "create", &all][..], &names].concat()).ok();
    let append = |from: u64, to: u64| {
        names.iter().for_each(|name| _ = fed(&["append", &format!("{all}/{name}")], &lines(from, to)).ok());
    };
    let group = |server: &Server| server.data.join("named/group-1");
    let mut last = 2000;
    append(1, last);
    let killed = leader_of(&servers.iter().collect::<Vec<_>>(), "orders") as usize - 1;
    servers[killed].kill();
    append(last + 1, last + 1000);
    servers[killed].start(&arguments);
    last += 1000;
    wait("objects are stored, and files go at each server", || {
        append(last + 1, last + 100);
        last += 100;
        let are_gone = |server: &Server| {
            let first = group(server).join("00000000000000000001.seg");
            !first.exists() && segments_in(&group(server)) <= 8
        };
        servers.iter().all(are_gone).then_some(())
    });
    for server in &servers {
        for name in names {
            let log = format!("{}/{name}", server.client);
            wait("the server has the last record", || {
                (run(&["info", &log, "--stale", "--json"]).json()["last"].as_u64()? == last).then_some(())
            });
            let read = run(&["read", &log, "--stale"]).ok().out;
            assert!(read == lines(1, last), "node {}: {} bytes of {name}", server.node, read.len());
        }
    }
    let (location, running) = (store.to_str().unwrap(), servers.iter().collect::<Vec<_>>());
    copies_of_one_log_read_objects(&running, names[1], location, dir.path(), last);

    // The backup has every record, also those that were in no object; what comes later is not in it.
    run(&["tier", "backup", &all, location, "nightly"]).ok();
    let pins = run(&["tier", "pins", location, "--json"]).ok().out;
    assert_eq!(pins.lines().count(), 2, "the catalogue and the group: {pins}");
    append(last + 1, last + 50);
    servers.iter_mut().for_each(Server::kill);
    let (backup, again) = (dir.path().join("backup"), dir.path().join("again/node1"));
    let (backup, again) = (backup.to_str().unwrap(), again.to_str().unwrap());
    run(&["tier", "fetch", location, backup, "--pin", "nightly"]).ok();
    let restored = run(&["restore", backup, again, "--json"]).ok().json();
    assert_eq!(restored["named_logs"], 3, "{restored}");
    let mut restored = Server::new(1, &dir.path().join("again"));
    restored.start(&["--set", "groups=1"]);
    for name in names {
        let log = format!("{}/{name}", restored.client);
        wait("it has the records of the backup", || {
            (run(&["read", &log]).out == lines(1, last)).then_some(())
        });
    }
}

/// A copy begins at once and has the whole log, and its own disk has little of it.
fn copy_reads_objects(servers: &[Server], location: &str, dir: &Path, last: u64) {
    let cluster = servers.iter().map(|s| s.client.as_str()).collect::<Vec<_>>().join(",");
    let store = ["--object-store", location, "--local-bytes", "2MiB"];
    let arguments = [&store[..], &["--cluster", &cluster, "--listen", "127.0.0.1:0"]].concat();
    for _ in 0..2 {
        let mut copy = Copy::start(dir, &arguments);
        let listen = copy.event("opened")["listen"].as_str().unwrap().to_owned();
        wait("it has the last record", || {
            let told = run(&["info", &listen, "--stale", "--json"]).json();
            (told["last"].as_u64()? >= last && told["first"].as_u64()? == 1).then_some(())
        });
        let read = run(&["read", &listen, "--stale"]).ok().out;
        assert!(read == lines(1, last), "{} bytes are read", read.len());
        assert!(segments_in(dir) <= 8, "{} files", segments_in(dir));
        copy.kill();
    }
}

/// A copy of one named log begins at once as well, and the servers send little of what is stored.
fn copies_of_one_log_read_objects(servers: &[&Server], name: &str, location: &str, dir: &Path, last: u64) {
    let log = format!("{}/{name}", clients(servers));
    let total = |series: &str| servers.iter().map(|server| value(server, series)).sum::<f64>();
    for (n, store) in ["servers", location].into_iter().enumerate() {
        let place = dir.join(format!("copy-{n}"));
        let before = total("chiplog_copies_bytes_total");
        let arguments =
            [log.as_str(), "--object-store", store, "--local-bytes", "2MiB", "--listen", "127.0.0.1:0"];
        for _ in 0..2 {
            let mut copy = Copy::start(&place, &arguments);
            let listen = copy.event("opened")["listen"].as_str().unwrap().to_owned();
            let there = format!("{listen}/{name}");
            wait("it has the last record", || {
                let told = run(&["info", &there, "--stale", "--json"]).json();
                (told["last"].as_u64()? >= last && told["first"].as_u64()? == 1).then_some(())
            });
            let read = run(&["read", &there, "--stale"]).ok().out;
            assert!(read == lines(1, last), "{} bytes are read", read.len());
            assert!(segments_in(&place) <= 8, "{} files", segments_in(&place));
            copy.kill();
        }
        let sent = total("chiplog_copies_bytes_total") - before;
        assert!(sent < 2e6, "{sent} bytes were sent to the copy with {store}");
    }
    assert!(total("chiplog_copies_objects_bytes_total") > 1e6);
}

fn copy_options_are_checked(servers: &[Server], location: &str) {
    let cluster = servers.iter().map(|s| s.client.as_str()).collect::<Vec<_>>().join(",");
    for store in [location, "servers"] {
        let orders = format!("{}/orders", servers[0].client);
        let named = run(&["follow", "x", &orders, "--object-store", store, "--fill-bytes", "1GiB"]);
        assert!(named.code == 2 && named.err.contains("fill_bytes"), "{}", named.err);
    }
    let both = run(&["follow", "x", &cluster, "--object-store", "servers", "--region", "north"]);
    assert_eq!(both.code, 2, "{}", both.err);
    let unused = run(&["follow", "x", &cluster, "--region", "north"]);
    assert!(unused.code == 2 && unused.err.contains("--object-store"), "{}", unused.err);
    let stored = run(&["follow", "x", &cluster, "--segments"]);
    assert!(stored.code == 7 && stored.err.contains("has an object store"), "{} {}", stored.code, stored.err);
    let missing = run(&["follow", "x", &cluster, "--object-store", "/no/such/directory"]);
    assert_eq!(missing.code, 4, "{}", missing.err);
    assert!(missing.err.contains("there is no directory /no/such/directory"), "{}", missing.err);
}

#[test]
fn store_that_is_down_stops_no_append_and_a_wrong_location_is_an_error_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    // Made-up keys: without any, the store's client asks the machine for its role.
    let keys = dir.path().join("keys");
    fs::write(&keys, "access_key = \"made-up\"\nsecret_key = \"made-up\"\n").unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let keys = format!("objects.credentials={}", keys.display());
    let down = [
        "--init",
        "--object-store=s3://bucket/prefix",
        "--set",
        &keys,
        "--set",
        "objects.endpoint=http://127.0.0.1:1",
        "--set",
        "objects.allow_http=true",
        "--set",
        "objects.timeout_millis=200",
        "--set",
        "objects.object_bytes=64KiB",
        "--set",
        "objects.local_bytes=2MiB",
    ];
    server.start(&down);
    append(std::slice::from_ref(&server), 1, 4000);
    wait("failures are counted", || (value(&server, "chiplog_object_failures_total") > 0.0).then_some(()));
    assert!(value(&server, "chiplog_unstored_bytes") > 3e6);
    let told = run(&["status", &server.client, "--json"]).json();
    assert!(told["replicas"][0]["object_failures"].as_u64() > Some(0), "{told}");
    // It was `ok`, with status 0.
    let (replica, code) = (&told["replicas"][0], run(&["status", &server.client]).code);
    assert_eq!((code, &replica["state"]), (5, &"store_fails".into()), "{told}");
    assert!(replica["why"].as_str().unwrap().contains("the object store have failed since 20"), "{told}");
    assert!(replica["store_failure"].is_string() && replica["store_failing_since"].is_string(), "{told}");
    assert!(server.said().contains("the object store cannot be used"), "{}", server.said());
    reads_all(&server, 4000);
    assert_eq!(server.stop(), Some(0));
    server.start(&[]);
    assert!(server.said().contains("object_store is not set here"), "{}", server.said());
    let told = run(&["status", &server.client, "--json"]);
    assert_eq!((told.code, &told.json()["replicas"][0]["state"]), (1, &"no_store".into()), "{}", told.out);
    assert_eq!(server.stop(), Some(0));

    for (wrong, named) in [
        ("relative/dir", "object_store: "),
        ("s3://", "object_store: "),
        ("/dev/null/store", "object_store: "),
    ] {
        let mut server = Server::new(2, dir.path());
        server.spawn(&["--init", "--object-store", wrong]);
        assert_ne!(server.ended(), Some(0));
        let said = server.said();
        assert!(said.contains(named), "{said}");
    }
}

/// The status was `ok` while the directory of the store was not mounted, and the log stored nothing: only the server's log said so.
#[test]
fn store_that_is_not_there_shows_in_the_status() {
    let dir = tempfile::tempdir().unwrap();
    let (store, aside) = (dir.path().join("store"), dir.path().join("aside"));
    let arguments = arguments(&store);
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--set", "groups=1"]);
    let mut servers = founded_with(vec![Server::new(1, dir.path())], &arguments);
    append(&servers, 1, 2_000);
    let client = servers[0].client.clone();
    let is_stored = |server: &Server| (value(server, "chiplog_stored_objects_total") > 2.0).then_some(());
    wait("objects are stored", || is_stored(&servers[0]));
    assert_eq!(value(&servers[0], "chiplog_store_failing"), 0.0);
    assert_eq!(servers[0].stop(), Some(0));

    fs::rename(&store, &aside).unwrap();
    fs::create_dir(&store).unwrap();
    servers[0].start(&arguments);
    let told = wait("the status says so", || {
        let told = run(&["status", &client, "--json"]);
        (told.json()["replicas"][0]["state"] == "store_fails").then_some(told)
    });
    let replica = &told.json()["replicas"][0];
    let why = replica["why"].as_str().unwrap();
    assert!(told.code == 5 && why.contains("have failed since 20"), "{}", told.out);
    assert!(why.contains("root is not in the object store any more"), "{why}");
    assert!(replica["store_failure"].is_string() && replica["store_failing_since"].is_string(), "{replica}");
    assert_eq!(value(&servers[0], "chiplog_store_failing"), 1.0);
    assert_eq!(servers[0].stop(), Some(0));

    // Another bucket: another log's objects would be found there, and none of this one.
    fs::remove_dir_all(&store).unwrap();
    fs::rename(&aside, &store).unwrap();
    servers[0].start(&arguments);
    append(&servers, 2_001, 4_000);
    wait("objects are stored again", || is_stored(&servers[0]));
    wait("all is well", || (run(&["status", &client]).code == 0).then_some(()));
    assert_eq!(value(&servers[0], "chiplog_store_failing"), 0.0);
}

/// Nothing showed that the object store of a copy failed, except for readers that got no answer.
#[test]
fn failing_store_of_a_copy_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (store, aside) = (dir.path().join("store"), dir.path().join("aside"));
    let location = format!("file://{}", store.display());
    let arguments = arguments(&store);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut servers = founded_with(vec![Server::new(1, dir.path())], &arguments);
    append(&servers, 1, 5_000);
    wait("objects are stored", || (value(&servers[0], "chiplog_stored_index") > 3_000.0).then_some(()));
    // A copy that got everything from files would not need the store. Files go when another segment begins.
    let (oldest, mut last) = (servers[0].data.join("00000000000000000001.seg"), 5_000);
    wait("files go", || {
        append(&servers, last + 1, last + 500);
        last += 500;
        (!oldest.exists()).then_some(())
    });
    let client = servers[0].client.clone();
    let listen = ["--object-store", &location, "--cluster", &client, "--listen", "127.0.0.1:0"];
    let started_as = |name: &str| {
        let copy = Copy::start(&dir.path().join(name), &listen);
        let at = copy.event("opened")["listen"].as_str().unwrap().to_owned();
        let info = || run(&["info", &at, "--stale", "--json"]).json();
        wait("it has the last record", || (info()["last"] == last).then_some(()));
        assert!(info()["store_failure"].is_null() && info()["store_failing_since"].is_null());
        (copy, at)
    };
    let ((copy, at), of_another_store) = (started_as("copy"), started_as("another"));
    let info = || run(&["info", &at, "--stale", "--json"]).json();
    assert_eq!(servers[0].stop(), Some(0));
    store_without_the_root_fails(of_another_store, &store, &aside);

    fs::rename(&store, &aside).unwrap();
    fs::write(&store, "no directory").unwrap();
    let mut reader = started(&["read", &at, "--stale", "--count"]);
    let failing = copy.event("store_fails");
    assert!(failing["why"].is_string() && failing["since"].as_str().unwrap().starts_with("20"), "{failing}");
    let told = info();
    assert!(told["store_failure"].is_string() && told["store_failing_since"].is_string(), "{told}");
    let words = run(&["info", &at, "--stale"]).ok().out;
    assert!(words.contains("object store its requests have failed since 20"), "{words}");
    reader.kill().unwrap();
    reader.wait().unwrap();

    fs::remove_file(&store).unwrap();
    fs::rename(&aside, &store).unwrap();
    assert!(run(&["read", &at, "--stale"]).ok().out == lines(1, last));
    copy.event("store_works");
    assert_eq!(copy.events("store_fails"), 1, "it is said once");
    assert!(info()["store_failure"].is_null());
}

/// A directory that is not mounted is an empty one: it answers, and has nothing of the log. No event said so, and `info` showed none.
fn store_without_the_root_fails((copy, at): (Copy, String), store: &Path, aside: &Path) {
    fs::rename(store, aside).unwrap();
    fs::create_dir(store).unwrap();
    let mut reader = started(&["read", &at, "--stale", "--count"]);
    let failing = copy.event("store_fails");
    let why = failing["why"].as_str().unwrap();
    assert!(why.contains("root is not in the object store any more"), "{failing}");
    let told = run(&["info", &at, "--stale", "--json"]).json();
    assert!(told["store_failure"].is_string() && told["store_failing_since"].is_string(), "{told}");
    reader.kill().unwrap();
    reader.wait().unwrap();
    fs::remove_dir_all(store).unwrap();
    fs::rename(aside, store).unwrap();
    run(&["read", &at, "--stale", "--count"]).ok();
    copy.event("store_works");
    assert_eq!(copy.events("store_fails"), 1, "it is said once");
}

/// A backup of servers in the store itself: nothing is copied, and it has the records that no disk has.
#[test]
fn backup_in_the_store_has_every_confirmed_record() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let arguments = arguments(&store);
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--set", "objects.object_bytes=1MiB"]);
    let servers = founded_with((1..=3).map(|n| Server::new(n, dir.path())).collect(), &arguments);
    append(&servers, 1, 5_000);
    let (list, location) = (&servers[1].client, store.to_str().unwrap());
    let pin = run(&["tier", "backup", list, location, "nightly", "--json"]).ok().json();
    assert_eq!((&pin["first"], &pin["last"]), (&1.into(), &5_000.into()), "{pin}");
    append(&servers, 5_001, 5_100);
    let told = run(&["tier", "status", location, "--cluster", list, "--json"]).ok().json();
    let server = &told["server"];
    assert_eq!((&server["last"], &server["stored_index"]), (&5_100.into(), &5_000.into()), "{told}");
    assert_eq!(server["unstored_records"], 100, "{told}");
    let refused = |ran: Ran, code: i32, why: &str| {
        assert!(ran.code == code && ran.err.contains(why), "{}: {}{}", ran.code, ran.out, ran.err);
    };
    refused(run(&["tier", "backup", list, location, "nightly"]), 2, "has a pin nightly already");
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let ran = run(&["tier", "backup", list, other.to_str().unwrap(), "b"]);
    refused(ran, 4, "give the location that the servers have");
    let (backup, again) = (dir.path().join("backup"), dir.path().join("again"));
    let (backup, again) = (backup.to_str().unwrap(), again.to_str().unwrap());
    run(&["tier", "fetch", location, backup, "--pin", "nightly"]).ok();
    let restored = run(&["restore", backup, again, "--json"]).ok().json();
    assert_eq!((&restored["last"], &restored["records"]), (&5_000.into(), &5_000.into()), "{restored}");

    let bare = founded_with(vec![Server::new(9, dir.path())], &[]);
    refused(run(&["tier", "backup", &bare[0].client, location, "b"]), 2, "no object store");
}

/// A branch of a log that servers have: a server begins a cluster with it, another one joins, and both have the whole log. Copies read the
/// parent's objects through them.
#[test]
fn branch_is_served_and_others_join_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, place) = (dir.path().join("store"), dir.path().join("branch"));
    let arguments = arguments(&store);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let parent = founded_with(vec![Server::new(1, dir.path())], &arguments);
    append(&parent, 1, 5_000);
    let location = store.to_str().unwrap();
    run(&["tier", "backup", &parent[0].client, location, "before"]).ok();
    append(&parent, 5_001, 5_100);
    fs::create_dir(&place).unwrap();
    let mut servers = vec![Server::new(1, &place)];
    let data = servers[0].data.to_str().unwrap().to_owned();
    let branch = run(&["tier", "branch", location, &data, "--json"]).ok().json();
    let last = branch["last"].as_u64().unwrap();
    assert!((5_000..5_100).contains(&last) && branch["first"] == 1, "{branch}");
    servers[0].start(&arguments);
    append(&servers, last + 1, 6_000);
    reads_all(&servers[0], 6_000);
    servers.push(Server::new(2, &place));
    servers[1].start(&arguments);
    made(&["member", "add", &servers[1].client, "--cluster", &servers[0].client, "--promote"]);
    for server in &servers {
        reads_all(server, 6_000);
        assert!(value(server, "chiplog_fetched_bytes_total") > 1e6, "node {}", server.node);
    }
    for (name, store) in [("copy", location), ("copy2", "servers")] {
        copy_reads_objects(&servers, store, &dir.path().join(name), 6_000);
    }
    let told = run(&["info", &parent[0].client, "--json"]).ok().json();
    assert_eq!(told["last"], 5_100, "the parent does not see it: {told}");
}

/// A branch of all logs of a cluster: a server begins another cluster with it, which has the named logs by their names, and goes on apart.
/// Another server joins, and a branch is made of that branch.
#[test]
fn branch_of_a_cluster_is_served_with_its_named_logs() {
    let dir = tempfile::tempdir().unwrap();
    let (store, place) = (dir.path().join("store"), dir.path().join("branch"));
    let object_store = format!("file://{}", store.display());
    let mut arguments = vec!["--object-store", &object_store];
    for set in ["groups=2", "objects.object_bytes=64KiB", "objects.object_age_seconds=1"] {
        arguments.extend(["--set", set]);
    }
    let parent = founded_with(vec![Server::new(1, dir.path())], &arguments);
    let (client, location) = (parent[0].client.clone(), store.to_str().unwrap());
    let lines =
        |log: &str, from: u64, to: u64| (from..=to).map(|n| format!("{log} {n:0200}\n")).collect::<String>();
    let names = ["orders", "users", "sealed"];
    run(&[&["logs", "create", &client][..], &names].concat()).ok();
    let mut to = 0;
    for part in ["before", "behind"] {
        let from = to + 1;
        to += 1000;
        for name in &names[..2] {
            fed(&["append", &format!("{client}/{name}")], &lines(name, from, to)).ok();
        }
        fed(&["append", &client], &lines("default", from, to)).ok();
        if part == "before" {
            fed(&["append", &format!("{client}/sealed")], &lines("sealed", 1, 10)).ok();
            run(&["logs", "seal", &client, "sealed"]).ok();
            fed(&["append", &format!("{client}/users")], &lines("users", to + 1, to + 1)).ok();
            fed(&["append", &format!("{client}/orders")], &lines("orders", to + 1, to + 1)).ok();
            to += 1;
            fed(&["append", &client], &lines("default", to, to)).ok();
        }
        // The groups that the cluster has just made are not in the list of its logs yet.
        wait("a backup", || (run(&["tier", "backup", &client, location, part]).code == 0).then_some(()));
    }
    fs::create_dir(&place).unwrap();
    let at = |name: &str| place.join(name).to_str().unwrap().to_owned();
    let indexed = run(&["tier", "branch", location, &at("none"), "--to-index", "5"]);
    assert!(indexed.code == 2 && indexed.err.contains("no index is one of all of them"), "{}", indexed.err);
    let alone = run(&["tier", "branch", location, &at("alone"), "--only-log", "--to-index", "1000"]).ok();
    assert!(alone.err.contains("it has no named logs"), "{}", alone.err);
    // All of it, and what a backup has.
    let id = run(&["info", &client, "--json"]).ok().json()["log_id"].as_str().unwrap().to_owned();
    let pinned = ["tier", "branch", location, &at("pinned"), "--log-id", &id, "--pin", "before", "--json"];
    let pinned = run(&pinned).ok().json();
    assert_eq!((&pinned["named_logs"], &pinned["last"]), (&3.into(), &1001.into()), "{pinned}");
    let mut servers = vec![Server::new(1, &place)];
    let data = servers[0].data.to_str().unwrap().to_owned();
    let told = run(&["tier", "branch", location, &data, "--log-id", &id, "--json"]).ok().json();
    assert_eq!(
        (&told["named_logs"], &told["first"], &told["last"]),
        (&3.into(), &1.into(), &to.into()),
        "{told}"
    );
    let logs = told["logs"].as_array().unwrap();
    let parts: Vec<&str> = logs.iter().map(|log| log["name"].as_str().unwrap()).collect();
    assert_eq!(parts, ["default", "group-1", "group-2"], "{told}");
    assert!(logs.iter().all(|log| log["branch_of"].as_array().unwrap().len() == 1), "{told}");
    assert!(told["branch_of"][0]["log_id"] == id[..] && told["notes"] == serde_json::json!([]), "{told}");
    let branch = told["log_id"].as_str().unwrap().to_owned();
    let early = run(&["tier", "branch", location, &at("early"), "--log-id", &branch]);
    assert!(early.code == 0 && early.err.contains("no server has run it yet"), "{}", early.err);

    servers[0].start(&arguments);
    let theirs = servers[0].client.clone();
    wait("it serves the named logs", || {
        (run(&["info", &format!("{theirs}/sealed"), "--json"]).code == 0).then_some(())
    });
    let has_all = |server: &Server, of: &str, last: u64| {
        let stale = if server.node == 1 { &[][..] } else { &["--stale"] };
        for name in &names[..2] {
            let log = format!("{}/{name}", server.client);
            let wanted = lines(name, 1, to) + &lines(of, to + 1, last);
            wait("it has all records", || {
                (run(&[&["read", &log][..], stale].concat()).out == wanted).then_some(())
            });
        }
        let sealed = format!("{}/sealed", server.client);
        assert_eq!(run(&[&["read", &sealed][..], stale].concat()).ok().out, lines("sealed", 1, 10));
    };
    has_all(&servers[0], "branch", to);
    assert_eq!(fed(&["append", &format!("{theirs}/sealed")], "late\n").code, 2);
    for name in &names[..2] {
        fed(&["append", &format!("{theirs}/{name}")], &lines("branch", to + 1, to + 300)).ok();
        fed(&["append", &format!("{client}/{name}")], &lines("parent", to + 1, to + 100)).ok();
    }
    has_all(&servers[0], "branch", to + 300);
    has_all(&parent[0], "parent", to + 100);
    servers.push(Server::new(2, &place));
    servers[1].start(&arguments);
    made(&["member", "add", &servers[1].client, "--cluster", &servers[0].client, "--promote"]);
    has_all(&servers[1], "branch", to + 300);
    // Its own objects are in the list of its cluster, and lead to a branch of it.
    wait("a backup", || (run(&["tier", "backup", &theirs, location, "own"]).code == 0).then_some(()));
    let second = run(&["tier", "branch", location, &at("second"), "--log-id", &branch, "--json"]).ok().json();
    let logs = second["logs"].as_array().unwrap();
    assert!(logs[1..].iter().all(|log| log["branch_of"].as_array().unwrap().len() == 2), "{second}");
    assert_eq!(second["named_logs"], 3, "{second}");
    let backup = run(&["tier", "fetch", location, &at("backup"), "--log-id", &branch, "--json"]).ok().json();
    assert_eq!(backup["logs"].as_array().unwrap().len(), 4, "{backup}");
    let refused = run(&["tier", "gc", location, "--log-id", &id, "--all", "--delete"]);
    assert!(refused.code != 0, "{}", refused.out);
    run(&["tier", "verify", location]).ok();
}
