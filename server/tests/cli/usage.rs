//! The command line itself: its mistakes, its help, its exit codes.

use crate::harness::{Place, command, has_fields, is_error, run};
use std::fs;
use std::path::Path;
use std::process::Stdio;

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

/// Each hint names a command that there is.
#[test]
fn words_of_other_programs_have_hints() {
    let lines = [
        "tail a",
        "cat a",
        "ls",
        "topics",
        "consume a",
        "produce a",
        "trim a",
        "logs rm a:1 b",
        "logs ls",
        "member list",
    ];
    for line in lines {
        let ran = run(&line.split(' ').collect::<Vec<_>>());
        let hint = ran.err.lines().next().and_then(|hint| hint.strip_prefix("chiplog: `chiplog "));
        let hint = hint.unwrap_or_else(|| panic!("{line}: {}", ran.err));
        assert_eq!(ran.code, 2, "{line}");
        let is_word = |word: &&str| word.chars().all(char::is_lowercase);
        let mut named: Vec<_> = hint.split(' ').take_while(is_word).collect();
        named.push("--help");
        run(&named).ok();
    }
    for line in ["nonsense", "read a --nonsense", "restore a b --yes"] {
        let ran = run(&line.split(' ').collect::<Vec<_>>());
        assert!(!ran.err.contains("chiplog: `"), "{line}: {}", ran.err);
    }
    let asks = run(&["logs", "seal", "a:1", "b", "--yes"]);
    assert!(asks.err.contains("does not ask"), "{}", asks.err);
}
