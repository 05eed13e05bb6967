//! `chiplog cost` without servers: the table of KIP-1176, traffic that is given, files of prices, mistakes.

use crate::harness::{Ran, command, finish, has_fields, is_error, run};
use serde_json::Value;
use std::fs;

/// The dollars of a line of a class.
fn dollars(report: &Value, class: &str, kind: &str) -> Option<f64> {
    let classes = report["classes"].as_array().unwrap();
    let class = classes.iter().find(|c| c["class"] == class).unwrap();
    if kind == "total" {
        return class["dollars"].as_f64();
    }
    class["lines"].as_array().unwrap().iter().find(|l| l["kind"] == kind).and_then(|l| l["dollars"].as_f64())
}

fn total(ran: &Ran, class: &str) -> f64 {
    dollars(&ran.json(), class, "total").unwrap()
}

#[test]
fn table_of_the_kip_has_each_formula_and_what_it_leaves_out() {
    let words = run(&["cost", "--kip-1176"]).ok();
    for line in [
        "1,612.80  112 GB/h x 720 h x $0.02",
        "648.00  100 PUT/s x 2,592,000 s x $0.0025/1,000",
        "866.00  an input: the KIP does not derive it",
        "776.00  an input: the KIP does not derive it",
        "2,478.80  1,612.80 + 866.00",
        "1,424.00  648.00 + 776.00",
        "saved: 42.5 %",
        "51.84  100 GET/s x 2,592,000 s x $0.0002/1,000",
        "3,225.60  2 x 112 GB/h x 720 h x $0.02",
        "10,200 events/s = (2 + 2 x 50 partitions) events a slice x 100 slices/s",
        "s3-standard          $1,402    $283    $143     $59",
        "s3-express             $619    $379    $349    $331",
        "s3-express, 3 zones  $1,746  $1,037    $948    $895",
        "at 10 ms: 43.7 %",
        "aws-2023-us-east-1 of 2023-11-28",
    ] {
        assert!(words.text().contains(line), "{line}: {}", words.text());
    }
    let table = run(&["cost", "--kip-1176", "--json"]).ok().json();
    has_fields(
        &table,
        &[
            "table",
            "saving_percent",
            "left_out",
            "metadata_events_per_second",
            "metadata_formula",
            "today",
            "saving_percent_today",
            "prices",
            "prices_today",
        ],
    );
    let row = &table["table"][0];
    has_fields(row, &["what", "dollars", "formula"]);
    assert_eq!((row["dollars"].as_f64(), table["saving_percent"].as_f64()), (Some(1612.8), Some(42.5)));
    let hop = &table["today"][2];
    assert_eq!((&hop["store"], hop["copies"].as_f64()), (&"s3-express".into(), Some(3.0)));
    assert_eq!(hop["intervals"][0]["dollars"], 1745.95);
}

#[test]
fn given_traffic_is_computed_by_class_and_line() {
    let args = ["cost", "--append-rate", "30MB/s", "--fan-out", "3", "--replicas", "3", "--zones", "3"];
    let args = [&args[..], &["--retention", "7d", "--slice", "100ms"]].concat();
    let report = run(&[&args[..], &["--json"]].concat()).ok().json();
    has_fields(&report, &["traffic", "classes", "not_included", "notes", "prices"]);
    has_fields(
        &report["traffic"],
        &[
            "seconds",
            "append_bytes_per_second",
            "appends_per_second",
            "read_bytes_per_second",
            "are_reads_assumed",
            "stored_bytes",
            "slices_per_second",
            "zones",
            "are_zones_assumed",
            "groups",
        ],
    );
    has_fields(&report["classes"][0]["lines"][0], &["kind", "dollars", "formula"]);
    let gb = 30e6 * 2_592_000.0 / 1_073_741_824.0;
    let kept = 30e6 * 604_800.0 / 1_073_741_824.0;
    for (class, kind, expected) in [
        ("majority", "replication", Some(gb * 2.0 * 0.02)),
        ("majority", "reads", Some(gb * 3.0 * 2.0 / 3.0 * 0.02)),
        ("majority", "disks", Some(kept * 3.0 * 0.08)),
        ("majority", "puts", None),
        ("majority+slices", "replication", Some(gb * 2.0 * 0.02)),
        ("majority+slices", "puts", Some(129.6)),
        ("majority+slices", "gets", Some(0.0)),
        ("majority+slices", "disks", Some(30e6 * 3600.0 * 3.0 / 1_073_741_824.0 * 0.08)),
        ("majority+slices", "heads", Some(10.368)),
        ("majority+slices", "entry_puts", None),
        ("object", "puts", Some(129.6)),
        ("object", "entry_puts", Some(129.6)),
        ("object", "heads", Some(20.736)),
        ("object", "read_backs", Some(30e6 * 2_592_000.0 / 4_194_304.0 * 0.0004 / 1000.0)),
        ("object", "gets", Some(2.0 * 10.0 * 2_592_000.0 * 0.0004 / 1000.0)),
        ("object", "object_storage", Some(kept * 0.023)),
        ("object", "disks", Some(0.0)),
    ] {
        let found = dollars(&report, class, kind);
        let is_near = match (found, expected) {
            (Some(found), Some(expected)) => (found - expected).abs() < 0.0051,
            (found, expected) => found == expected,
        };
        assert!(is_near, "{class} {kind}: {found:?}, not {expected:?}");
    }
    let words = run(&args).ok();
    for part in ["MAJORITY+SLICES", "total", "Not included:", "machines"] {
        assert!(words.text().contains(part), "{part}: {}", words.text());
    }
    assert!(!words.text().contains("x $0.02"));
    let formulas = run(&[&args[..], &["--formulas"]].concat()).ok();
    assert!(formulas.text().contains("GB to copies in other zones x $0.02"), "{}", formulas.text());
    // The servers of the environment are not asked.
    let ran = finish(command(&args).env("CHIPLOG_SERVERS", "127.0.0.1:9").spawn().unwrap());
    assert_eq!(ran.ok().out, words.out);
}

#[test]
fn options_change_what_they_say() {
    let with = |more: &[&str]| run(&[&["cost", "--append-rate", "30MB/s", "--json"], more].concat()).ok();
    let plain = with(&[]);
    assert!(total(&with(&["--readers", "nearest"]), "majority") < total(&plain, "majority"));
    assert!(total(&with(&["--zones", "1"]), "majority") < total(&plain, "majority") / 2.0);
    assert!(total(&with(&["--slice", "10ms"]), "object") > total(&plain, "object") + 1000.0);
    let rare = with(&["--batch", "30MB", "--slice-bytes", "1GiB"]); // an append a second: a slice a second
    assert_eq!(dollars(&rare.json(), "object", "puts"), Some(12.96));
    let large = with(&["--slice", "10s", "--slice-bytes", "1MB"]);
    assert_eq!(dollars(&large.json(), "object", "puts"), Some(388.8));
    let quorum = with(&["--store", "s3-express", "--store-copies", "3", "--slice", "10ms"]).json();
    assert_eq!(dollars(&quorum, "object", "puts"), Some(878.69));
    assert_eq!(quorum["notes"].as_array().unwrap().len(), 0, "{}", quorum["notes"]);
    let one = with(&["--store", "s3-express"]).json();
    assert!(one["notes"][0].as_str().unwrap().contains("--store-copies 3"), "{}", one["notes"]);
    let then = with(&["--prices", "aws-2023-us-east-1"]).json();
    assert_eq!(then["prices"]["date"], "2023-11-28");
}

#[test]
fn file_of_prices_is_used_and_its_mistakes_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.toml");
    let path = file.to_str().unwrap();
    let today = run(&["cost", "--print-prices"]).ok();
    fs::write(&file, &today.out).unwrap();
    let with_file = ["cost", "--append-rate", "30MB/s", "--prices", path];
    let without = run(&["cost", "--append-rate", "30MB/s"]).ok();
    assert_eq!(run(&with_file).ok().out, without.out);

    fs::write(&file, today.text().replace("put_per_1000 = 0.005", "put_per_1000 = 0.01")).unwrap();
    let dearer = run(&[&with_file[..], &["--json"]].concat()).ok().json();
    assert_eq!(dollars(&dearer, "object", "puts"), Some(259.2));

    for (from, to, words) in [
        ("[disk]", "[disk]\ncolour = 1", &["unknown field `colour`", "line 15", "correct that line"][..]),
        ("gb_month = 0.08\n", "", &["missing field `gb_month`", "--print-prices"]),
        ("in_per_gb = 0.01", "in_per_gb = -0.01", &["transfer.in_per_gb is -0.01, which is no price"]),
        ("[disk]", "[disk", &["line 14"]),
    ] {
        assert!(today.text().contains(from), "{from}");
        fs::write(&file, today.text().replacen(from, to, 1)).unwrap();
        let refused = run(&with_file).fails(2);
        for word in [&["--prices: ", path], words].concat() {
            assert!(refused.err.contains(word), "{word}: {}", refused.err);
        }
        is_error(&run(&[&with_file[..], &["--json"]].concat()).fails(2), "invalid_argument", 9);
    }
}

#[test]
fn mistakes_are_reported_before_any_server_is_asked() {
    let given = ["cost", "--append-rate", "1MB/s"];
    for (args, words) in [
        (&["cost"][..], "give HOST:PORT of a server, or --append-rate"),
        (&["cost", "./log"], "./log"),
        (&["cost", "a:1", "--append-rate", "1MB/s"], "cannot be used with"),
        (&["cost", "--append-rate", "fast"], "give bytes per second, such as 30MB/s"),
        (&["cost", "127.0.0.1:9", "--batch", "1KiB"], "leave --batch out"),
        (&["cost", "127.0.0.1:9", "--zones", "2"], "leave --zones out"),
        (&["cost", "127.0.0.1:9", "--store", "none"], "give one of s3-standard, s3-express"),
        (
            &["cost", "127.0.0.1:9", "--prices", "/nowhere.toml"],
            "give a file of prices, or one of these names",
        ),
        (&["cost", "127.0.0.1:9", "127.0.0.1:9/orders"], "different logs"),
        (&["cost", "--kip-1176", "--slice", "10ms"], "cannot be used with"),
        (&[&given[..], &["--slice", "100"]].concat(), "such as 100ms or 1s"),
        (&[&given[..], &["--fan-out=-1"]].concat(), "give a number of reads from 0"),
        (&[&given[..], &["--object-store", "x"]].concat(), "--object-store: the prices aws-2026-us-east-1"),
    ] {
        let refused = run(args).fails(2);
        assert!(refused.err.contains(words), "{args:?}: {}", refused.err);
        assert!(refused.out.is_empty(), "{args:?}");
    }
    is_error(&run(&["cost", "127.0.0.1:9", "--json"]).fails(5), "unavailable", 21);
}
