//! Objects over plain HTTP from a real server, with TLS, clients' certificates and tokens: `chiplog tier` and `curl`, which need no
//! credentials of the object store.

use crate::certificates::Authority;
use crate::harness::{Ran, Server, fed, run, wait};
use chiplog::{Log, Options};
use chiplog_tier::{ObjectVault, VaultOptions};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

/// A server with objects, named logs, TLS and tokens.
struct Secured {
    server: Server,
    authority: Authority,
    store: PathBuf,
    dir: TempDir,
}

impl Secured {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new(dir.path(), "ours");
        authority.sign(1);
        let mut lines = String::new();
        for (name, more) in [("admin", &["--role", "admin"][..]), ("read", &["--role", "read"])] {
            lines += &token(dir.path(), name, more);
        }
        lines += &token(dir.path(), "scoped", &["--role", "read", "--logs", "orders"]);
        fs::write(dir.path().join("tokens"), lines).unwrap();
        let store = dir.path().join("store");
        let mut arguments = authority.settings(1, &authority);
        arguments
            .extend(["--init", "--object-store", &format!("file://{}", store.display())].map(str::to_owned));
        let tokens = format!("auth.tokens={}", dir.path().join("tokens").display());
        // A block is smaller than an object: on a busy machine larger ones would fill few objects.
        let blocks = "log.block_bytes_max=128KiB";
        for set in ["groups=1", blocks, "objects.object_bytes=256KiB", "objects.cache_bytes=8MiB", &tokens] {
            arguments.extend(["--set".to_owned(), set.to_owned()]);
        }
        let mut server = Server::new(1, dir.path());
        server.spawn(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let secured = Self { server, authority, store, dir };
        let client = secured.server.client.clone();
        wait("it leads", || {
            let shown = secured.run("read", &["status", &client, "--json"]);
            (serde_json::from_str::<Value>(&shown.out).ok()?["leader"] == 1).then_some(())
        });
        secured
    }

    fn options(&self, token: &str) -> Vec<String> {
        let token = self.dir.path().join(token).to_str().unwrap().to_owned();
        self.authority.client().into_iter().chain(["--token-file".to_owned(), token]).collect()
    }

    fn run(&self, token: &str, args: &[&str]) -> Ran {
        let options = self.options(token);
        let all: Vec<&str> = args.iter().copied().chain(options.iter().map(String::as_str)).collect();
        run(&all)
    }

    fn append(&self, log: &str, text: &str) {
        let options = self.options("admin");
        let all: Vec<&str> = ["append", log].into_iter().chain(options.iter().map(String::as_str)).collect();
        fed(&all, text).ok();
    }

    fn url(&self) -> String {
        format!("https://{}", self.server.client)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }
}

/// Makes a token. Returns its line.
fn token(dir: &Path, name: &str, more: &[&str]) -> String {
    let file = dir.join(name).to_str().unwrap().to_owned();
    run(&[&["token", "--out", &file][..], more].concat()).ok().out
}

fn lines(first: u64, last: u64) -> String {
    (first..=last).map(|n| format!("record {n} {}\n", "x".repeat(900 + n as usize % 50))).collect()
}

/// The objects of each log in a store or at a server, by the log's id.
fn listed(ran: Ran) -> Vec<Value> {
    let all = ran.ok().out;
    all.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn backup_is_made_through_a_server_without_credentials_of_the_store() {
    let secured = Secured::start();
    let (server, url) = (&secured.server, secured.url());
    let orders = format!("{}/orders", server.client);
    secured.run("admin", &["logs", "create", &server.client, "orders"]).ok();
    let location = secured.store.to_str().unwrap().to_owned();
    let of_store = || {
        let mut all = listed(run(&["tier", "list", &location, "--json"]));
        all.retain(|log| log["objects"] != 0);
        all
    };
    let mut appended = 0;
    wait("both logs have objects", || {
        secured.append(&server.client, &lines(appended + 1, appended + 1000));
        secured.append(&orders, &lines(appended + 1, appended + 1000));
        appended += 1000;
        let found = of_store();
        (found.iter().filter(|log| log["objects"].as_u64() >= Some(8)).count() == 2).then_some(())
    });
    // The list of a server has what the logs know to be stored.
    let (all, through) = wait("the lists agree", || {
        let mut before = of_store();
        let through = listed(secured.run("read", &["tier", "list", &url, "--json"]));
        for log in &mut before {
            (log["role"].is_string() && log["cluster"].is_string()).then_some(())?;
            (log["role"], log["cluster"]) = (Value::Null, Value::Null); // a server does not tell
        }
        (before == through).then_some((before, through))
    });
    assert!(through.iter().any(|log| log["objects"].as_u64() >= Some(8)) && all.len() >= 2, "{through:?}");
    let verified = secured.run("read", &["tier", "verify", &url, "--json"]).ok().json();
    assert_eq!((&verified["ok"], verified["logs"].as_array().unwrap().len()), (&true.into(), all.len()));
    let id = secured.run("read", &["info", &server.client, "--json"]).ok().json();
    let id = id["log_id"].as_str().unwrap();
    let (backup, again) = (secured.path("backup"), secured.path("again"));
    // The named logs are not left out without a word.
    let refused = secured.run("read", &["tier", "fetch", &url, &backup, "--log-id", id]);
    assert!(refused.code != 0 && refused.err.contains("--only-log"), "{} {}", refused.code, refused.err);
    let alone = ["tier", "fetch", &url, &backup, "--log-id", id, "--only-log", "--json"];
    let fetched = secured.run("read", &alone).ok().json();
    let last = fetched["last"].as_u64().unwrap();
    assert!(last > 1000 && fetched["first"] == 1, "{fetched}");
    run(&["restore", &backup, &again]).ok();
    assert!(run(&["read", &again]).ok().out == lines(1, last));
    // The group of the named log, which has the records of all of its logs.
    let group = through.iter().filter(|log| log["log_id"] != id).max_by_key(|log| log["objects"].as_u64());
    let group = group.unwrap()["log_id"].as_str().unwrap().to_owned();
    let backup = secured.path("group");
    let alone = ["tier", "fetch", &url, &backup, "--log-id", &group, "--only-log", "--json"];
    let fetched = secured.run("read", &alone).ok().json();
    assert!(fetched["last"].as_u64().unwrap() > 1000, "{fetched}");

    let scoped = secured.run("scoped", &["tier", "list", &url]);
    assert!(scoped.code == 2 && scoped.err.contains("token without a scope"), "{}", scoped.err);
    let options = secured.authority.client();
    let bare: Vec<&str> =
        ["tier", "list", &url].into_iter().chain(options.iter().map(String::as_str)).collect();
    let bare = run(&bare);
    assert!(bare.code == 2 && bare.err.contains("no token was sent"), "{} {}", bare.code, bare.err);
    // A server is not asked for things that only the store can do.
    for args in [
        &["tier", "pin", &url, "a"][..],
        &["tier", "unpin", &url, "a"],
        &["tier", "pins", &url],
        &["tier", "gc", &url],
        &["tier", "status", &url],
        &["tier", "fetch", &url, &secured.path("x"), "--pin", "a"],
        &["tier", "list", &url, "--endpoint", "http://a"],
        &["tier", "list", "http://log1.example:7411", "--token-file", &secured.path("read")],
    ] {
        let ran = run(args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
    }
    let probes = format!("http://{}", server.http);
    let ran = run(&["tier", "list", &probes]);
    assert!(ran.code != 0 && ran.err.contains(&probes), "{}", ran.err);

    // A damaged object is an error of the backup, and the name is told.
    let object = secured.store.join(id).join("o/00000000000000000003");
    let mut bytes = fs::read(&object).unwrap();
    bytes[10_000] ^= 4;
    fs::write(&object, bytes).unwrap();
    let bad = secured.path("bad");
    let ran = secured.run("read", &["tier", "fetch", &url, &bad, "--log-id", id, "--only-log"]);
    assert!(ran.code == 3 && ran.err.contains("o/00000000000000000003"), "{} {}", ran.code, ran.err);
    // `verify` finds all that are damaged, and those that are lost, also the oldest one. The server still lists them.
    let folder = secured.store.join(id).join("o");
    let mut cut_off = fs::read(folder.join("00000000000000000005")).unwrap();
    cut_off.truncate(1000);
    fs::write(folder.join("00000000000000000005"), cut_off).unwrap();
    fs::remove_file(folder.join("00000000000000000000")).unwrap();
    let ran = secured.run("read", &["tier", "verify", &url, "--log-id", id, "--json"]);
    let found = ran.json();
    let faults: Vec<_> = found["logs"][0]["faults"].as_array().unwrap().iter().collect();
    let numbers: Vec<_> = faults.iter().filter_map(|fault| fault["object"].as_u64()).collect();
    assert!(ran.code == 3 && found["ok"] == false && numbers == [0, 3, 5], "{} {found}", ran.code);
}

/// Waits until a server lists objects of one log, and returns its id.
fn only_the_catalogue(url: &str) -> String {
    wait("the catalogue has an object", || {
        let mut rows = listed(run(&["tier", "list", url, "--json"]));
        rows.retain(|row| row["objects"].as_u64() > Some(0));
        assert!(rows.len() <= 1, "{rows:?}");
        Some(rows.first()?["log_id"].as_str().unwrap().to_owned())
    })
}

/// The catalogue is not taken for a default log that has no object yet.
#[test]
fn default_log_is_taken_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    let object_store = format!("file://{}", dir.path().join("store").display());
    let sets = ["--set", "groups=1", "--set", "objects.object_age_seconds=1"];
    server.start(&[&["--init", "--object-store", &object_store][..], &sets].concat());
    let url = format!("http://{}", server.client);
    run(&["logs", "create", &server.client, "orders"]).ok();
    let catalogue = only_the_catalogue(&url);
    let place = |name: &str| dir.path().join(name).display().to_string();
    for alone in [&[][..], &["--only-log"]] {
        let none = run(&[&["tier", "fetch", &url, &place("none")][..], alone].concat());
        assert!(none.code == 4 && none.err.contains("has no object yet"), "{} {}", none.code, none.err);
        assert!(none.err.contains(&format!("{catalogue} (_system)")), "{}", none.err);
    }
    let half = run(&["tier", "fetch", &url, &place("none"), "--log-id", &catalogue]);
    assert!(half.code == 7 && half.err.contains("--only-log"), "{} {}", half.code, half.err);
    assert!(!Path::new(&place("none")).exists());
    run(&["tier", "fetch", &url, &place("catalogue"), "--log-id", &catalogue, "--only-log"]).ok();
    // With objects of its own it is taken, alone if that is wanted.
    fed(&["append", &server.client], &lines(1, 10)).ok();
    wait("the default log has an object", || {
        let ran = run(&["tier", "fetch", &url, &place("default"), "--only-log", "--json"]);
        let has_all = ran.code == 0 && ran.json()["last"] == 10;
        if ran.code == 0 && !has_all {
            fs::remove_dir_all(place("default")).unwrap(); // an object of the first records alone
        }
        has_all.then_some(())
    });
    let half = run(&["tier", "fetch", &url, &place("none")]);
    assert!(half.code == 7 && half.err.contains("--only-log"), "{} {}", half.code, half.err);
}

/// A branch as the default log hides no other log of its server.
#[test]
fn branch_is_listed_with_the_reason_and_hides_no_other_log() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store").display().to_string();
    let vault = Arc::new(ObjectVault::open(&store, VaultOptions::default()).unwrap());
    let options = Options::with_segment_bytes(256 << 10).vault(Some(vault as _)).object_bytes(64 << 10);
    let parent = Log::open(dir.path().join("parent"), options).unwrap();
    for n in 0..1500_u32 {
        parent.append(&n.to_le_bytes().repeat(100)).unwrap();
    }
    wait("objects are stored", || (parent.metrics().stored_objects >= 8).then_some(()));
    let parent_id = format!("{:032x}", parent.log_id().get());
    parent.close().unwrap();
    let mut server = Server::new(1, dir.path());
    let data = server.data.to_str().unwrap().to_owned();
    let made = run(&["tier", "branch", &store, &data, "--json"]).ok().json();
    let branch = made["log_id"].as_str().unwrap();
    let object_store = format!("file://{store}");
    let mut arguments = vec!["--object-store", &object_store];
    for set in ["groups=1", "objects.object_age_seconds=1"] {
        arguments.extend(["--set", set]);
    }
    server.start(&arguments);
    let url = format!("http://{}", server.client);
    run(&["logs", "create", &server.client, "orders"]).ok();
    // The catalogue alone has objects: it is not taken for the default log.
    only_the_catalogue(&url);
    for alone in [&[][..], &["--only-log"]] {
        let dir = dir.path().join("catalogue").display().to_string();
        let any = run(&[&["tier", "fetch", &url, &dir][..], alone].concat());
        assert!(any.code == 7 && any.err.contains("is a branch"), "{} {}", any.code, any.err);
        assert!(any.err.contains("(_system)") && !Path::new(&dir).exists(), "{}", any.err);
    }
    fed(&["append", &format!("{}/orders", server.client)], &lines(1, 100)).ok();
    let rows = wait("the group has an object", || {
        let rows = listed(run(&["tier", "list", &url, "--json"]));
        (rows.iter().filter(|row| row["objects"].as_u64() > Some(0)).count() >= 2).then_some(rows)
    });
    let row = rows.iter().find(|row| row["log_id"] == branch).unwrap();
    let why = row["not_served"].as_str().unwrap();
    assert!(row["objects"] == 0 && why.contains("is a branch"), "{row}");
    assert!(rows.iter().all(|row| row["not_served"].is_null() != (row["log_id"] == branch)), "{rows:?}");
    assert!(run(&["tier", "list", &url]).ok().err.contains(why));
    // The logs that are served are checked, and the command says that these are not all.
    let verified = run(&["tier", "verify", &url, "--json"]);
    let told = verified.json();
    assert_eq!(
        (verified.code, &told["ok"], &told["not_checked"][0]["log_id"]),
        (7, &false.into(), &branch.into())
    );
    assert_eq!(told["logs"].as_array().unwrap().len(), rows.len() - 1, "{told}");
    // Nothing is taken for the branch, and the others are fetched by their ids.
    let place = |name: &str| dir.path().join(name).display().to_string();
    let alone = run(&["tier", "fetch", &url, &place("none"), "--log-id", branch, "--only-log"]);
    assert!(alone.code == 7 && alone.err.contains("is a branch"), "{} {}", alone.code, alone.err);
    assert_eq!(run(&["tier", "fetch", &url, &place("none"), "--log-id", &parent_id, "--only-log"]).code, 4);
    let any = run(&["tier", "fetch", &url, &place("none")]);
    assert!(any.code != 0 && any.err.contains(branch), "{} {}", any.code, any.err);
    assert!(!Path::new(&place("none")).exists());
    for row in rows.iter().filter(|row| row["objects"].as_u64() > Some(0)) {
        let id = row["log_id"].as_str().unwrap();
        run(&["tier", "fetch", &url, &place(id), "--log-id", id, "--only-log"]).ok();
    }
    // The store itself has all.
    run(&["tier", "fetch", &store, &place("whole"), "--log-id", branch]).ok();
}

#[test]
fn curl_downloads_and_resumes_objects() {
    let Ok(version) = Command::new("curl").arg("--version").output() else {
        eprintln!("SKIPPED: there is no curl here");
        return;
    };
    let protocols = match String::from_utf8_lossy(&version.stdout).contains("HTTP2") {
        true => &["--http1.1", "--http2"][..],
        false => &["--http1.1"],
    };
    let secured = Secured::start();
    let url = secured.url();
    secured.append(&secured.server.client, &lines(1, 2000));
    let token = fs::read_to_string(secured.path("read")).unwrap();
    let curl = |args: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--cacert", &secured.authority.file("authority.pem")]);
        command.args(["--cert", &secured.authority.file("1.pem"), "--key", &secured.authority.file("1.key")]);
        command.args(["--header", &format!("Authorization: Bearer {}", token.trim())]).args(args);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let all = format!("{url}/v1/objects");
    let objects = wait("objects are stored", || {
        let list: Value = serde_json::from_slice(&curl(&["--fail", &all])).unwrap();
        let objects = list["logs"][0]["objects"].as_array().unwrap().clone();
        (objects.len() >= 4).then_some(objects)
    });
    for (n, protocol) in protocols.iter().enumerate() {
        for object in &objects {
            let name = object["name"].as_str().unwrap();
            let stored = fs::read(secured.store.join(name)).unwrap();
            let path = format!("{all}/{name}");
            assert!(curl(&[protocol, "--fail", &path]) == stored);
            assert!(curl(&[protocol, "--fail", "--range", "1000-4999", &path]) == stored[1000..5000]);
            let head = String::from_utf8(curl(&[protocol, "--head", &path])).unwrap().to_lowercase();
            assert!(head.contains(&format!("content-length: {}\r\n", stored.len())), "{head}");
            let file = secured.path(&format!("part{n}"));
            fs::write(&file, &stored[..stored.len() / 2 + 1]).unwrap();
            curl(&[protocol, "--fail", "--continue-at", "-", "--output", &file, &path]);
            assert!(fs::read(&file).unwrap() == stored);
        }
        let code =
            curl(&[protocol, "--output", "/dev/null", "--write-out", "%{http_code}", &format!("{all}/x")]);
        assert_eq!(code, b"404");
    }
    // Without a certificate, TLS fails; without a token, the answer is 401.
    let authority = secured.authority.file("authority.pem");
    let bare = Command::new("curl").args(["--silent", "--cacert", &authority, &all]).output().unwrap();
    assert!(!bare.status.success());
}
