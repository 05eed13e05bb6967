//! Appends to several named logs at once, on the command line.

use crate::harness::{Server, fed, run, wait};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The records of a log, as lines.
fn records(client: &str, log: &str) -> String {
    run(&["read", &format!("{client}/{log}")]).ok().out
}

#[test]
fn records_of_several_files_are_appended_together_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init", "--set", "groups=2"]);
    let client = server.client.as_str();
    let group = |name: &str| run(&["logs", "create", client, name, "--json"]).ok().json()["group"].clone();
    let near = group("from");
    run(&["logs", "create", client, "to", "sealed", "--beside", "from"]).ok();
    // The other group can be ready a moment later.
    let mut names = (1..).map(|n| format!("far-{n}"));
    let far = wait("a log is created in the other group", || names.next().filter(|name| group(name) != near));
    let file = |name: &str, text: &[u8]| -> String {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (withdraw, deposit) = (file("withdraw", b"-5\n-7"), file("deposit", b"+12\n"));
    let both = [format!("from={withdraw}"), format!("to={deposit}")];
    let together = ["logs", "append-together"];
    let done = run(&[&together[..], &[client, &both[0], &both[1]]].concat()).ok();
    assert_eq!(done.out, "appended 2 records to from, index 1 to 2\nappended 1 record to to, index 1 to 1\n");
    assert_eq!((records(client, "from"), records(client, "to")), ("-5\n-7\n".into(), "+12\n".into()));

    // From standard input, twice to one log, as JSON.
    let args = [&together[..], &[client, "to=-", &both[1], "--json"]].concat();
    let done = fed(&args, "one\ntwo\nthree\n").ok();
    let shown: Vec<Value> = done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let fields = |shown: &Value| ["name", "records", "bytes", "first", "last"].map(|key| shown[key].clone());
    assert_eq!(fields(&shown[0]), ["to".into(), Value::from(3), 11.into(), 2.into(), 4.into()]);
    assert_eq!(fields(&shown[1]), ["to".into(), Value::from(1), 3.into(), 5.into(), 5.into()]);
    assert!(shown.len() == 2 && shown.iter().all(|shown| shown["durability"] == "majority"), "{shown:?}");

    // Compressed records that have their lengths before them.
    let binary = format!("to={}", file("binary", b"\x03\0\0\0a\nb\x01\0\0\0c"));
    run(&[&together[..], &[client, &binary, "--length-prefixed", "--codec", "zstd"]].concat()).ok();
    assert_eq!(records(client, "to"), "+12\none\ntwo\nthree\n+12\na\nb\nc\n");

    run(&["logs", "seal", client, "sealed"]).ok();
    let before = (records(client, "from"), records(client, "to"), records(client, &far));
    let empty = file("empty", b"");
    let missing = Path::new(&empty).with_file_name("missing").display().to_string();
    for (second, code, words) in [
        (format!("{far}={deposit}"), 2, "--beside"),
        (format!("sealed={deposit}"), 2, "sealed"),
        (format!("none={deposit}"), 4, "none"),
        (format!("default={deposit}"), 2, "default"),
        (format!("to={empty}"), 2, "has no records"),
        (format!("to={missing}"), 4, "missing"),
    ] {
        let args = [&together[..], &[client, &both[0], &second]].concat();
        let failed = run(&args);
        assert_eq!(failed.code, code, "{second}: {}", failed.err);
        assert!(failed.err.contains(words) && failed.err.contains("nothing was appended"), "{}", failed.err);
        let failed = run(&[&args[..], &["--json"]].concat());
        let told: Value = serde_json::from_str(failed.err.lines().last().unwrap()).unwrap();
        assert_eq!((failed.code, &told["appended"]), (code, &Value::Bool(false)), "{second}: {told}");
    }
    assert_eq!((records(client, "from"), records(client, "to"), records(client, &far)), before);
}
