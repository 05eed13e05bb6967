//! Commands one after the other: their output and exit codes.

use crate::harness::{Place, command, has_fields, is_error, numbered, run, run_with};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Stdio;

#[test]
fn lines_are_appended_and_read() {
    let place = Place::empty();
    let input = "one\n\nthree \t\r\nümlaut\nlast without newline";
    let ran = place.append(input.as_bytes()).ok();
    let summary = ran.json();
    has_fields(
        &summary,
        &[
            "records",
            "bytes",
            "batches",
            "first",
            "last",
            "durability",
            "seconds",
            "records_per_second",
            "bytes_per_second",
        ],
    );
    assert_eq!(summary["durability"], "majority");
    assert_eq!((&summary["records"], &summary["first"], &summary["last"]), (&5.into(), &1.into(), &5.into()));
    assert_eq!(place.run("read", &[]).ok().text(), format!("{input}\n"));
    let more = run_with(&["append", &place.log()], b"six\n").ok();
    assert!(more.text().starts_with("appended 1 record (3 B), index 6 to 6, in "), "{}", more.text());
    assert_eq!(more.err, "");
    let nothing = run_with(&["append", &place.log()], b"").ok();
    assert!(nothing.text().contains("nothing to append"), "{}", nothing.text());
    let nothing = place.append(b"").ok().json();
    assert_eq!((&nothing["first"], nothing.get("durability")), (&Value::Null, None));
    assert_eq!(run_with(&["append", &place.log(), "-q"], b"seven").ok().text(), "");
    assert_eq!(place.run("read", &["--count"]).ok().text(), "7\n");
}

#[test]
fn lines_from_many_threads_and_compressed_are_all_appended() {
    let place = Place::empty();
    let path = place.dir.path().join("input");
    fs::write(&path, numbered(1, 5000)).unwrap();
    let path = path.to_str().unwrap();
    for codec in ["none", "lz4", "zstd"] {
        let args = [
            "append",
            &place.log(),
            "--lines",
            path,
            "--threads",
            "4",
            "--batch",
            "37",
            "--codec",
            codec,
            "--json",
        ];
        let summary = run(&args).ok().json();
        assert_eq!((&summary["records"], &summary["batches"]), (&5000.into(), &5000u64.div_ceil(37).into()));
    }
    let read = place.run("read", &[]).ok();
    let mut lines: Vec<&str> = read.text().lines().collect();
    lines.sort_unstable();
    let mut expected: Vec<String> = (1..=5000).map(|n| format!("record {n}")).collect();
    expected = [expected.clone(), expected.clone(), expected].concat();
    expected.sort_unstable();
    assert_eq!(lines, expected);
    assert_eq!(place.run("verify", &["--json"]).ok().json()["records"], 15_000);
}

#[test]
fn one_thread_keeps_the_order_of_the_input() {
    let place = Place::empty();
    let input = numbered(1, 20_000);
    place.append(&input).ok();
    assert!(place.run("read", &[]).ok().out == input, "the records are not the lines of the input");
}

#[test]
fn length_prefixed_records_hold_any_bytes_and_copy_a_log() {
    let records: [&[u8]; 4] = [b"plain", b"", b"two\nlines\0", &[0xff, 0xfe]];
    let mut input = Vec::new();
    for record in records {
        input.extend((record.len() as u32).to_le_bytes());
        input.extend(record);
    }
    let (place, copy) = (Place::empty(), Place::empty());
    run_with(&["append", &place.log(), "--length-prefixed"], &input).ok();
    let out = place.run("read", &["--length-prefixed"]).ok().out;
    assert_eq!(out, input);
    let path = place.dir.path().join("copy");
    fs::write(&path, &out).unwrap();
    run(&["append", &copy.log(), &format!("--length-prefixed={}", path.display())]).ok();
    assert_eq!(copy.run("read", &["--length-prefixed"]).ok().out, input);
    let json = copy.run("read", &["--json"]).ok().lines();
    has_fields(&json[0], &["index", "timestamp", "time", "size", "data"]);
    assert_eq!((&json[2]["data"], &json[2]["size"]), (&"two\nlines\0".into(), &10.into()));
    has_fields(&json[3], &["index", "timestamp", "time", "size", "data_base64"]);
    assert_eq!(json[3]["data_base64"], "//4=");
}

#[test]
fn reading_starts_and_stops_at_the_given_records() {
    let place = Place::with(100);
    let read = |args: &[&str]| place.run("read", args).ok().text().to_string();
    assert_eq!(read(&["--from", "98"]), "record 98\nrecord 99\nrecord 100\n");
    assert_eq!(read(&["--last", "2"]), "record 99\nrecord 100\n");
    assert_eq!(read(&["--last", "0"]), "");
    assert_eq!(read(&["--last", "1000", "--count"]), "100\n");
    assert_eq!(read(&["--from", "7", "-n", "2"]), "record 7\nrecord 8\n");
    assert_eq!(read(&["--limit", "0"]), "");
    assert_eq!(read(&["--from", "101"]), "", "the next record is not an error");
    assert_eq!(read(&["--since", "1h", "--count"]), "100\n");
    assert_eq!(read(&["--since", "2100-01-01", "--count"]), "0\n");
    assert_eq!(place.run("read", &["--count", "--json"]).ok().json(), serde_json::json!({ "count": 100 }));
    assert_eq!(read(&["-n", "2", "--format", "%i=%d (%s)\\n"]), "1=record 1 (8)\n2=record 2 (8)\n");
    assert_eq!(read(&["-n", "1", "--format", "%x %e%%"]), "7265636f72642031 record 1%");
}

#[test]
fn missing_log_or_record_is_status_4() {
    let place = Place::with(10);
    let nowhere = place.dir.path().join("nowhere");
    let nowhere = nowhere.to_str().unwrap();
    for args in [
        &["read", nowhere][..],
        &["info", nowhere],
        &["verify", nowhere],
        &["dump", nowhere],
        &["discard", nowhere, "1"],
        &["append", nowhere, "--no-create"],
        &["doctor", nowhere],
    ] {
        is_error(&run(&[args, &["--json"]].concat()).fails(4), "not_found", 14);
        let words = run(args).fails(4);
        assert!(
            words.err.starts_with("chiplog: ") && words.err.contains("nowhere"),
            "{args:?} {}",
            words.err
        );
    }
    assert!(!Path::new(nowhere).exists(), "nothing was made");
    for args in [&["read", nowhere][..], &["info", nowhere], &["discard", nowhere, "1"]] {
        let words = run(args).fails(4).err;
        assert!(
            words.contains("no log at") && words.contains("`chiplog append`"),
            "it says what to do: {words}"
        );
    }
    let file = place.dir.path().join("chiplog.txt");
    fs::write(&file, "no directory").unwrap();
    for name in ["append", "read", "info", "verify"] {
        let words = run(&[name, file.to_str().unwrap()]).fails(2).err;
        assert!(words.ends_with("chiplog.txt is a file, not a directory\n"), "{name} {words}");
    }
    is_error(&place.run("read", &["--from", "12", "--json"]).fails(4), "out_of_range", 8);
    is_error(&place.run("dump", &["--segment", "77", "--json"]).fails(4), "not_found", 14);
    let missing = place.dir.path().join("missing.txt");
    let args = ["append", nowhere, "--lines", missing.to_str().unwrap(), "--json"];
    is_error(&run(&args).fails(4), "not_found", 14);
    assert!(!Path::new(nowhere).exists(), "a wrong file name makes no log");
}

#[test]
fn wrong_command_line_is_status_2() {
    let place = Place::with(10);
    let log = place.log();
    for args in [
        &["bogus"][..],
        &["append"],
        &["append", &log, "--threads", "0"],
        &["append", &log, "--codec", "gzip"],
        &["append", &log, "--segment-bytes", "1KiB"],
        &["append", &log, "--segment-bytes", "many"],
        &["append", &log, "--capacity", "1KiB"],
        &["append", &log, "--lines", "x", "--length-prefixed"],
        &["append", &log, "--lines", &log],
        &["read", &log, "--from", "1", "--last", "2"],
        &["read", &log, "--from", "0"],
        &["read", &log, "--since", "yesterday"],
        &["read", &log, "--length-prefixed"],
        &["read", &log, "--format", "%q"],
        &["discard", &log, "0"],
        &["discard", &log, "12"],
        &["man", "bogus"],
        &["info", "localhost:0"],
        &["info", ""],
    ] {
        is_error(&run(&[args, &["--json"]].concat()).fails(2), "invalid_argument", 9);
    }
    let words = run(&["discard", &log]).fails(2);
    assert!(words.err.contains("the index of the first record to keep"), "{}", words.err);
    let words = run(&["append", &log, "--codec", "gzip"]).fails(2);
    assert!(words.err.contains("possible values: none, lz4, zstd"), "{}", words.err);
    assert_eq!(place.run("read", &["--count"]).ok().text(), "10\n", "nothing was changed");
}

#[test]
fn commands_for_files_refuse_servers() {
    for command in ["dump", "doctor"] {
        is_error(&run(&[command, "localhost:9000", "--json"]).fails(2), "invalid_argument", 9);
    }
}

#[test]
fn misspelt_servers_make_no_log() {
    let place = tempfile::tempdir().unwrap();
    let append = |args: &[&str]| {
        let mut append = command(&[&["append"], args].concat());
        let output = append.current_dir(&place).stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (target, code) in [
        ("http://log1:7411", 2),
        ("log1:7411/", 2),
        ("log1:7411x", 2),
        ("log1:7411, log2", 2),
        ("log1", 4),
        ("127.0.0.1", 4),
    ] {
        let (ended, words) = append(&[target]);
        assert_eq!(ended, Some(code), "{target}: {words}");
        assert!(
            words.contains("./") || words.contains("HOST:PORT"),
            "{target}: it says what to give: {words}"
        );
    }
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0, "nothing was made");
    assert_eq!(append(&["log1", "--create"]).0, Some(0));
    let (ended, words) = append(&["./log2"]);
    assert!(ended == Some(0) && words.contains("made a new log in the directory ./log2"), "{words}");
    assert_eq!(append(&["log1"]).0, Some(0), "it exists");
    // A directory of something else becomes a log only when that is said.
    let home = place.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::create_dir(home.join("lost+found")).unwrap();
    fs::write(home.join("letter"), "dear").unwrap();
    let (ended, words) = append(&["./home"]);
    assert!(ended == Some(2) && words.contains("--create"), "{words}");
    assert_eq!(fs::read_dir(&home).unwrap().count(), 2, "nothing was made");
    fs::remove_file(home.join("letter")).unwrap();
    assert_eq!(append(&["./home"]).0, Some(0));
    fs::write(home.join("letter"), "dear").unwrap();
    assert_eq!(append(&["./home"]).0, Some(0), "it is a log");
}

#[test]
fn help_and_version_are_not_errors() {
    for name in [
        "append",
        "read",
        "info",
        "discard",
        "verify",
        "dump",
        "doctor",
        "bench",
        "status",
        "top",
        "cost",
        "member",
        "completions",
        "man",
        "backup",
        "restore",
    ] {
        let help = run(&[name, "--help"]).ok();
        for part in ["Examples:", "Exit status:", "Environment:"] {
            assert!(help.text().contains(part), "{name} {part}");
        }
        assert!(run(&[name, "-h"]).ok().out.len() < help.out.len());
    }
    assert!(run(&["--version"]).ok().text().starts_with("chiplog "));
    assert!(run(&[]).fails(2).err.contains("Usage:"));
}

#[test]
fn mistake_in_the_command_line_begins_with_the_programs_name() {
    for (args, begins) in [
        (
            &["read", "x", "--last", "abc"][..],
            "chiplog: invalid value 'abc' for '--last <N>': give a number of records, such as 10\n",
        ),
        (
            &["append", "x", "--threads", "513"],
            "chiplog: invalid value '513' for '--threads <N>': give a number of threads from 1 to 512\n",
        ),
        (&["reda"], "chiplog: unrecognized subcommand 'reda'\n"),
        (&["read", "x", "--las", "1"], "chiplog: unexpected argument '--las' found\n"),
        (&["serve", "--node", "x"], "chiplog: --node or CHIPLOG_NODE: "),
    ] {
        let ran = run(args).fails(2);
        assert!(ran.err.starts_with(begins), "{}", ran.err);
        let error = run(&[args, &["--json"]].concat()).fails(2).error();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(begins["chiplog: ".len()..].trim_end()), "{message}");
    }
    assert!(run(&["serve", "--node", "x"]).fails(2).err.contains("expected a whole number"));
}

#[test]
fn input_that_ends_inside_a_record_keeps_the_records_before() {
    let place = Place::empty();
    let ran =
        run_with(&["append", &place.log(), "--length-prefixed", "--json"], b"\x02\0\0\0ok\x09\0\0\0cut")
            .fails(2);
    let error = ran.error();
    assert_eq!(error["error"]["kind"], "invalid_argument");
    assert_eq!((&error["durable"]["records"], &error["durable"]["last"]), (&1.into(), &1.into()));
    let words =
        run_with(&["append", &place.log(), "--length-prefixed"], b"\x02\0\0\0ok\x09\0\0\0cut").fails(2);
    assert!(words.err.contains("1 record is durable, index 2 to 2"), "{}", words.err);
    assert_eq!(place.run("read", &[]).ok().text(), "ok\nok\n");
}

#[test]
fn full_log_reports_what_was_appended_and_accepts_more_after_a_discard() {
    let place = Place::empty();
    let log = place.log();
    let input = numbered(1, 50_000);
    let args = ["append", &log, "--segment-bytes", "64KiB", "--capacity", "256KiB", "--batch", "100"];
    let full = run_with(&[&args[..], &["--json"]].concat(), &input).fails(5);
    let error = full.error();
    assert_eq!(error["error"]["kind"], "full");
    let durable = error["durable"]["last"].as_u64().unwrap();
    assert!(durable > 1000, "{error}");
    assert_eq!(place.run("read", &["--count"]).ok().text().trim(), durable.to_string());
    let words = run_with(&args, &input).fails(5);
    assert!(words.err.contains("chiplog discard"), "it says what to do: {}", words.err);
    let last = place.run("info", &["--json"]).ok().json()["last"].as_u64().unwrap();
    place.run("discard", &[&(last + 1).to_string()]).ok();
    run_with(&args, b"fits again\n").ok();
    assert_eq!(place.run("read", &[]).ok().text(), "fits again\n");
}

/// It showed neither, and an append was refused.
#[test]
fn info_shows_the_capacity_and_whether_the_log_is_full() {
    let place = Place::with(3);
    let shown = |place: &Place| {
        let info = place.run("info", &["--json"]).ok().json();
        (info["bytes_capacity"].clone(), info["full"].clone(), place.run("info", &[]).ok().text().to_owned())
    };
    let (capacity, full, words) = shown(&place);
    assert_eq!((capacity, full), (Value::Null, Value::Null));
    assert!(!words.contains("room"), "{words}");
    place.run("options", &["--set", "capacity_bytes=128KiB"]).ok();
    let (capacity, full, words) = shown(&place);
    assert_eq!((capacity, full), (131_072.into(), false.into()));
    assert!(words.contains(" of 128.0 KiB (") && words.contains("larger appends are refused"), "{words}");
    let refused = run_with(&["append", &place.log(), "--batch", "1"], &numbered(1, 2000)).fails(5);
    assert!(refused.err.contains("the log is full"), "{}", refused.err);
    let (_, full, words) = shown(&place);
    assert_eq!(full, true);
    assert!(words.contains("the log is full; `chiplog discard` makes room"), "{words}");
    place.run("options", &["--set", "capacity_bytes=none"]).ok();
    assert_eq!(shown(&place).0, Value::Null);
}

#[test]
fn info_shows_positions_and_sizes() {
    let place = Place::with(30);
    let info = place.run("info", &["--json"]).ok().json();
    has_fields(
        &info,
        &[
            "leader",
            "store_failure",
            "store_failing_since",
            "directory",
            "log_id",
            "first",
            "last",
            "records",
            "durable",
            "bytes_used",
            "bytes_capacity",
            "full",
            "segments",
            "sessions",
            "last_timestamp",
            "last_time",
            "writer",
            "unproven",
            "in_object_store",
            "whole_objects",
            "bytes_on_disk",
            "replica",
        ],
    );
    let numbers = ["first", "last", "records", "durable"].map(|name| info[name].as_u64().unwrap());
    assert_eq!(numbers, [1, 30, 30, 30]);
    assert_eq!((info["log_id"].as_str().unwrap().len(), &info["writer"]), (32, &Value::Null));
    assert!(info["bytes_on_disk"].as_u64() >= Some(64 << 10), "{info}");
    assert_eq!(info["replica"], Value::Null);
    let words = place.run("info", &["--quiet"]).ok();
    assert!(words.text().contains("30, index 1 to 30"), "{}", words.text());
    let empty = Place::with(0);
    let info = empty.run("info", &["--json"]).ok().json();
    let numbers = ["first", "last", "records", "durable"].map(|name| info[name].as_u64().unwrap());
    assert_eq!(numbers, [1, 0, 0, 0]);
    assert!(empty.run("info", &[]).ok().text().contains("none; the next index is 1"));
}

/// There is no such command, and nothing said where the members are.
#[test]
fn list_of_the_members_is_found() {
    let ran = run_with(&["member", "list"], b"").fails(2);
    assert!(ran.err.contains("`chiplog status HOST:PORT` lists the members"), "{}", ran.err);
}

/// The directory of a replica is reported as such, with the command that opens it.
#[test]
fn directory_of_a_replica_is_reported() {
    use chiplog::cluster::{Bootstrap, ClusterOptions};
    use chiplog::transport::MemoryNetwork;
    use chiplog::{Log, LogId, NodeId, Options};
    let place = Place::empty();
    let network = MemoryNetwork::new();
    let cluster = ClusterOptions::new(NodeId(2), Bootstrap::Join(LogId(7)), network.transport());
    let options = Options::with_segment_bytes(64 << 10).cluster(cluster);
    Log::open(place.log(), options).unwrap().close().unwrap();
    let info = place.run("info", &["--json"]).ok().json();
    assert_eq!(info["replica"], serde_json::json!({ "node": null, "members": 0, "copy": false }));
    assert!(place.run("info", &[]).ok().text().contains("a cluster to which it was not added yet"));
    for args in [&["append"][..], &["discard", "1"]] {
        let ran = place.run(args[0], &args[1..]).fails(2);
        assert!(ran.err.contains("replica of a cluster") && ran.err.contains("chiplog serve"), "{}", ran.err);
    }
}

/// A log without its identity does not open, but it is not reported as missing.
#[test]
fn lost_identity_is_not_reported_as_a_missing_log() {
    let place = Place::with(30);
    fs::remove_file(Path::new(&place.log()).join("chiplog.id")).unwrap();
    for args in [&["info"][..], &["read"], &["discard", "5"], &["append"], &["append", "--no-create"]] {
        let ran = place.run(args[0], &args[1..]).fails(3);
        assert!(
            ran.err.contains("identity is missing") && ran.err.contains("holds data"),
            "{args:?} {}",
            ran.err
        );
    }
    let verified = place.run("verify", &[]).fails(3);
    assert!(verified.text().contains("identity is missing"), "{}", verified.text());
    assert!(!verified.text().contains("named above"), "no record is: {}", verified.text());
    assert_eq!(place.run("read", &["--salvage", "--count"]).fails(3).text(), "30\n");
}

/// A killed writer leaves records that it confirmed and that no later block proves yet.
#[test]
fn unproven_records_are_reported() {
    let place = Place::with(30);
    assert_eq!(place.run("info", &["--json"]).ok().json()["unproven"], 0);
    assert_eq!(place.run("read", &["--count"]).ok().err, "");
    place.unprove();
    let info = place.run("info", &["--json"]).ok().json();
    let (last, unproven) = (info["last"].as_u64().unwrap(), info["unproven"].as_u64().unwrap());
    assert!(unproven > 0 && last + unproven == 30, "{info}");
    let told = format!(
        "{unproven} more records are in the files but not proven durable yet; opening the log for writing"
    );
    assert!(place.run("info", &[]).ok().text().contains(&told));
    let read = place.run("read", &[]).ok();
    assert_eq!(read.text().lines().count() as u64, last);
    assert!(
        read.err.starts_with(&format!("chiplog: {told}")) && read.err.lines().count() == 1,
        "{}",
        read.err
    );
    assert_eq!(place.run("read", &["--json"]).ok().error()["unproven"], unproven);
    assert_eq!(place.run("read", &["-q"]).ok().err, "");
    assert_eq!(place.append(b"x\n").ok().json()["first"], 31);
    assert_eq!(place.run("info", &["--json"]).ok().json()["unproven"], 0);
}

#[test]
fn discard_removes_a_prefix_and_needs_an_option_beyond_the_end() {
    let place = Place::with(30);
    let gone = place.run("discard", &["21", "--json"]).ok().json();
    has_fields(&gone, &["first", "last", "discarded", "bytes_used"]);
    assert_eq!((&gone["first"], &gone["last"], &gone["discarded"]), (&21.into(), &30.into(), &20.into()));
    // Their file still exists and is checked with them.
    let verified = place.run("verify", &["--json"]).ok().json();
    assert_eq!((&verified["records"], &verified["discarded"]), (&30.into(), &20.into()), "{verified}");
    assert!(place.run("verify", &[]).ok().text().contains("30 records (20 of them discarded"));
    assert_eq!(place.run("discard", &["5", "--json"]).ok().json()["discarded"], 0, "again changes nothing");
    is_error(&place.run("read", &["--from", "20", "--json"]).fails(4), "discarded", 7);
    assert_eq!(place.run("read", &["-n", "1"]).ok().text(), "record 21\n");
    let beyond = place.run("discard", &["1000"]).fails(2);
    assert!(beyond.err.contains("--fast-forward"), "{}", beyond.err);
    let all = place.run("discard", &["31"]).ok();
    assert!(
        all.text().contains("discarded 10 records; the log is empty, the next record is 31"),
        "{}",
        all.text()
    );
    place.run("discard", &["1000", "--fast-forward"]).ok();
    assert_eq!(place.append(b"x\n").ok().json()["first"], 1000);
    let verified = place.run("verify", &["--json"]).json();
    assert_eq!(verified["faults"], serde_json::json!([]), "a jump is not a gap");
    let dump = place.run("dump", &["--json"]).ok().lines();
    let discards = dump.iter().filter(|line| line["content"]["command"] == "discard");
    assert_eq!(
        discards.map(|line| line["content"]["first"].as_u64().unwrap()).collect::<Vec<_>>(),
        [21, 31, 1000]
    );
}

#[test]
fn verify_finds_every_damaged_block_and_the_lost_records() {
    let place = Place::with(20_000);
    let sound = place.run("verify", &["--json"]).ok().json();
    has_fields(
        &sound,
        &[
            "ok",
            "segments",
            "blocks",
            "batches",
            "records",
            "bytes",
            "first",
            "last",
            "discarded",
            "corrupt",
            "harmless",
            "undecodable",
            "seconds",
            "tail",
            "faults",
            "faults_left_out",
        ],
    );
    assert_eq!((&sound["ok"], &sound["records"]), (&true.into(), &20_000.into()));
    assert!(sound["segments"].as_u64().unwrap() >= 3, "{sound}");
    let blocks = place.blocks();
    // One byte in the payload of a batch, one in a block's header, in different segments.
    let many = |b: &&Value| b["records"].as_u64() > Some(10);
    let (payload, header) =
        (blocks.iter().find(many).unwrap(), blocks.iter().rev().find(|b| b["segment"] == 2).unwrap());
    let at = |block: &Value, name: &str| block[name].as_u64().unwrap();
    place.flip(at(payload, "segment"), at(payload, "offset") + 110);
    place.flip(at(header, "segment"), at(header, "offset") + 20);
    let spoilt = place.run("verify", &["--json"]).fails(3).json();
    assert_eq!((&spoilt["ok"], &spoilt["corrupt"]), (&false.into(), &2.into()), "{spoilt}");
    // In the block whose header is sound, the batch is damaged: its offset, and its ten records.
    let batch = (at(payload, "offset") + 64, at(payload, "first") + 9);
    assert_eq!(at(payload, "segment"), 1);
    let whole = (at(header, "offset"), at(header, "first") + at(header, "records") - 1);
    let faults = spoilt["faults"].as_array().unwrap();
    for ((fault, block), (offset, last)) in faults.iter().zip([payload, header]).zip([batch, whole]) {
        has_fields(
            fault,
            &[
                "file",
                "offset",
                "bytes",
                "severity",
                "what",
                "raft_first",
                "raft_last",
                "record_first",
                "record_last",
            ],
        );
        assert_eq!(fault["file"], format!("{:020}.seg", at(block, "segment")));
        assert_eq!((&fault["offset"], &fault["raft_first"]), (&offset.into(), &block["raft_index"]));
        assert_eq!((&fault["record_first"], &fault["severity"]), (&block["first"], &"corrupt".into()));
        assert_eq!(fault["record_last"], last);
    }
    let missing = 20_000 - 10 - at(header, "records");
    assert_eq!(spoilt["records"], missing, "the rest was read");
    let words = place.run("verify", &[]).fails(3);
    assert_eq!(
        words.text().lines().filter(|line| line.starts_with("corrupt: ")).count(),
        2,
        "{}",
        words.text()
    );
    assert!(words.text().contains("CORRUPT"), "{}", words.text());
    // The sound records before the fault are read; then reading reports the fault.
    let read = place.run("read", &["--json"]).fails(3);
    assert_eq!(read.lines().len() as u64, at(payload, "first") - 1);
    assert_eq!(read.error()["error"]["kind"], "corrupt");
    let salvaged = place.run("read", &["--salvage", "--json"]).fails(3);
    assert_eq!(salvaged.lines().len() as u64, missing);
    assert_eq!(salvaged.err.lines().count(), 2);
    assert_eq!(salvaged.error()["skipped"]["raft_first"], header["raft_index"]);
    let end = place.run("read", &["--salvage", "--from", "19999", "-q"]).fails(3);
    assert_eq!((end.text(), end.err.as_str()), ("record 19999\nrecord 20000\n", ""));
    assert!(place.run("dump", &[]).fails(3).text().contains("checksum"));
}

/// Damage in the last segment prevents opening the log; its sound records can still be read.
#[test]
fn log_that_does_not_open_is_salvaged() {
    let place = Place::with(300);
    place.run("discard", &["101"]).ok();
    let blocks = place.blocks();
    let bad = &blocks[blocks.len() / 2];
    let at = |name: &str| bad[name].as_u64().unwrap();
    place.flip(at("segment"), at("offset") + 110);
    let refused = place.append(b"x").fails(3);
    assert_eq!(refused.error()["error"]["kind"], "corrupt");
    assert!(place.run("info", &[]).fails(3).err.contains("--salvage"));
    let salvaged = place.run("read", &["--salvage"]).fails(3);
    let gone = at("first")..at("first") + 10; // the batch, not the block
    let expected: String =
        (101..=300).filter(|n| !gone.contains(n)).map(|n| format!("record {n}\n")).collect();
    assert_eq!(salvaged.text(), expected);
    assert!(salvaged.err.starts_with("chiplog: skipped: "), "{}", salvaged.err);
    assert_eq!(Place::with(3).run("read", &["--salvage", "--count"]).ok().text(), "3\n");
}

#[test]
fn dump_shows_the_content_of_the_files() {
    let place = Place::empty();
    run_with(&["append", &place.log(), "--segment-bytes", "64KiB", "--codec", "zstd"], &numbered(1, 500))
        .ok();
    let lines = place.run("dump", &["--json", "--records", "--preview", "6"]).ok().lines();
    let of = |kind: &'static str| lines.iter().filter(move |line| line["type"] == kind);
    has_fields(
        of("segment").next().unwrap(),
        &["type", "segment", "file", "state", "bytes", "segment_id", "log_id"],
    );
    has_fields(
        of("segment_end").next().unwrap(),
        &["type", "segment", "data_end", "blocks", "records", "index_entries"],
    );
    let block = of("block").find(|block| block["kind"] == "data").unwrap();
    has_fields(
        block,
        &[
            "type",
            "segment",
            "offset",
            "bytes",
            "kind",
            "raft_index",
            "term",
            "first",
            "records",
            "timestamp",
            "time",
            "durable_upto",
            "fault",
            "batches",
        ],
    );
    assert!(of("block").any(|block| block["timestamp"].is_null() && block["time"].is_null()));
    assert!(of("block").all(|block| block["timestamp"] != 0), "a time in 1970 means none");
    let batch = &block["batches"][0];
    has_fields(batch, &["first", "records_count", "bytes", "codec", "session", "sequence", "records"]);
    assert_eq!(batch["codec"], "zstd");
    assert_eq!(batch["records"][0], serde_json::json!({ "index": 1, "size": 8, "preview": "record" }));
    assert_eq!(of("block").map(|b| b["records"].as_u64().unwrap()).sum::<u64>(), 500);
    let words = place.run("dump", &["--segment", "1", "--records=hex"]).ok();
    assert!(words.text().contains("7265636f72642031"), "{}", words.text());
    assert!(words.text().contains("codec zstd"));
}

#[test]
fn doctor_examines_and_removes_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let ran = run(&["doctor", path, "--seconds", "1", "--json"]);
    let found = ran.json();
    has_fields(
        &found,
        &[
            "directory",
            "file_system",
            "device",
            "space",
            "limits",
            "system",
            "writer",
            "sync",
            "findings",
            "fit",
        ],
    );
    has_fields(&found["file_system"], &["type", "source", "mount_point", "options", "read_only"]);
    has_fields(&found["space"], &["free_bytes", "total_bytes", "free_files"]);
    assert_eq!(ran.code, if found["fit"] == true { 0 } else { 1 });
    assert!(found["sync"]["samples"].as_u64().unwrap() > 0);
    let sync = |name: &str| found["sync"][name].as_f64().unwrap();
    assert!(found["sync"]["device_writes_zeroes"].is_boolean());
    assert!(sync("p50_micros") <= sync("p99_micros") && sync("p99_micros") <= sync("max_micros"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let words = run(&["doctor", path, "--seconds", "0"]);
    assert!(words.text().contains("file system"), "{}", words.text());
    is_error(&run(&["doctor", path, "--write-bytes", "1GiB", "--json"]).fails(2), "invalid_argument", 9);
}

#[test]
fn bench_measures_threads_on_a_directory_and_removes_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let bench = |args: &[&str]| run(&[&["bench", path, "--secs", "0.1"], args].concat());
    let measured = bench(&["--appenders", "1,4", "--record-bytes", "10,1KiB", "--json"]).ok().json();
    has_fields(&measured, &["directory", "seconds", "appends", "read"]);
    let rows = measured["appends"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "two sizes, 1 and 4 threads");
    for row in rows {
        assert!(row["records"].is_u64() && row["connections"].is_null(), "{row}");
        assert!(row["p50_micros"].as_f64().unwrap() <= row["max_micros"].as_f64().unwrap(), "{row}");
    }
    assert!(measured["read"]["records"].as_u64().unwrap() > 0, "{measured}");
    let words = bench(&["--quick", "--appenders", "3"]).ok();
    assert!(words.text().contains("P99.9") && words.text().lines().count() == 3, "{}", words.text());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

    let log = Place::with(1);
    for (args, code) in [
        (&["bench"][..], 2),
        (&["bench", path, "--yes"], 2),
        (&["bench", path, "--connections", "2"], 2),
        (&["bench", path, "--secs", "0"], 2),
        (&["bench", &log.log()], 2),
        (&["bench", "nonsense"], 4),
    ] {
        assert_eq!(run(args).code, code, "{args:?}");
    }
}

#[test]
fn completions_and_manual_pages_are_printed() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(run(&["completions", shell]).ok().text().contains("length-prefixed"), "{shell}");
    }
    has_fields(&run(&["completions", "bash", "--json"]).ok().json(), &["shell", "script"]);
    assert!(run(&["man"]).ok().text().contains(".TH chiplog 1"));
    let page = run(&["man", "append"]).ok();
    assert!(
        page.text().contains(".TH chiplog-append 1") && page.text().contains(".SH EXIT STATUS"),
        "{}",
        page.text()
    );
    has_fields(&run(&["man", "read", "--json"]).ok().json(), &["name", "page"]);
    let dir = tempfile::tempdir().unwrap();
    let pages = run(&["man", "--out", dir.path().to_str().unwrap(), "--json"]).ok().json();
    assert!(pages["written"].as_array().unwrap().len() >= 10);
    assert!(dir.path().join("chiplog-verify.1").exists() && dir.path().join("chiplog.1").exists());
}

/// A batch of 3 records whose 102,000 zeros compress well, and whose table of record ends is invalid.
fn zeros_without_a_table() -> chiplog::Batch {
    let mut bytes = vec![0; 40];
    bytes.extend([0x1f, 0, 1, 0]);
    bytes.extend([255; 399]);
    bytes.extend([230, 0x50, 0, 0, 0, 0, 0]);
    let length = bytes.len() as u32;
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    bytes[8..12].copy_from_slice(&3u32.to_le_bytes());
    bytes[12..16].copy_from_slice(&102_000u32.to_le_bytes());
    bytes[34] = 1;
    let crc = bytes[4..].iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { c >> 1 ^ 0x82f6_3b78 } else { c >> 1 })
    });
    bytes[..4].copy_from_slice(&(!crc).to_le_bytes());
    chiplog::Batch::decode(bytes.into()).unwrap()
}

#[test]
fn undecodable_batches_are_reported_and_skipped() {
    let place = Place::empty();
    let log = chiplog::Log::open(place.log(), chiplog::Options::with_segment_bytes(1 << 20)).unwrap();
    log.append(b"before").unwrap();
    log.append(&zeros_without_a_table()).unwrap();
    log.append(b"behind").unwrap();
    log.close().unwrap();
    let ended = place.run("read", &[]).fails(3);
    assert_eq!(ended.text(), "before\n");
    assert!(ended.err.contains("records 2 to 4 cannot be unpacked"), "{}", ended.err);
    let skipped = place.run("read", &["--skip-undecodable"]).ok();
    assert_eq!(skipped.text(), "before\nbehind\n");
    assert!(skipped.err.starts_with("chiplog: skipped: records 2 to 4"), "{}", skipped.err);
    let skipped = place.run("read", &["--skip-undecodable", "--json"]).ok();
    assert_eq!(skipped.lines().len(), 2);
    assert!(
        skipped.error()["undecodable"].as_str().unwrap().contains("continue at record 5"),
        "{}",
        skipped.err
    );
    let salvaged = place.run("read", &["--salvage"]).ok();
    assert_eq!(salvaged.text(), "before\nbehind\n");
    assert!(salvaged.err.contains("records 2 to 4"), "{}", salvaged.err);
    let verified = place.run("verify", &["--json"]).ok().json();
    assert_eq!((&verified["ok"], &verified["corrupt"]), (&true.into(), &0.into()));
    assert_eq!(verified["undecodable"], 1);
    assert_eq!(verified["faults"][0]["severity"], "undecodable");
    let words = place.run("verify", &[]).ok();
    assert!(words.text().contains("undecodable: ") && words.text().contains("sound: "), "{}", words.text());
}
