//! `verify`, `salvage`, `dump`, `doctor` and `bench`.

use crate::harness::{Place, has_fields, is_error, numbered, run, run_with};
use serde_json::Value;
use std::fs;

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
