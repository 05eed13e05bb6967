//! `append`, `read` and `discard` on a directory, one after the other.

use crate::harness::{Place, has_fields, is_error, numbered, run, run_with};
use serde_json::Value;
use std::fs;

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
