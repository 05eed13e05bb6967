//! The header: cbindgen's output equals the committed file, and its functions are those of the manifest of
//! operations.
//!
//! `UPDATE_HEADER=1 cargo test --workspace --features chiplog/testing --test header` writes it.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// The order of the sources for readers of the header. Further ones follow, by name.
const ORDER: [&str; 30] = [
    "abi/version",
    "abi/error",
    "abi/trace",
    "abi/values",
    "handles/log/options",
    "handles/log/open",
    "handles/log/write",
    "handles/log/read",
    "handles/log/state",
    "handles/log/log_options",
    "handles/batch",
    "handles/ticket",
    "handles/reader/state",
    "handles/reader/calls",
    "abi/records",
    "handles/session",
    "handles/read_only",
    "handles/logs/options",
    "handles/logs/info",
    "handles/logs/calls",
    "handles/logs/together",
    "handles/client/options",
    "handles/client/calls",
    "handles/client/together",
    "handles/client/reader",
    "handles/producer",
    "handles/follower/options",
    "handles/follower/status",
    "handles/follower/events",
    "handles/follower/calls",
];

/// The sources, without the lists of modules, which would add everything a second time.
fn sources() -> Vec<PathBuf> {
    let root = here().join("src");
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs")
                && !path.ends_with("mod.rs")
                && !path.ends_with("lib.rs")
            {
                found.push(path);
            }
        }
    }
    let place = |path: &PathBuf| {
        let name = path.strip_prefix(&root).unwrap().with_extension("").display().to_string();
        (ORDER.iter().position(|n| **n == name).unwrap_or(ORDER.len()), name)
    };
    found.sort_by_key(place);
    found
}

/// The header as it should be.
fn generated() -> String {
    let mut config = cbindgen::Config::from_file(here().join("cbindgen.toml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let [major, minor, patch] = version.split('.').collect::<Vec<_>>()[..] else { panic!("{version}") };
    config.header = Some(fs::read_to_string(here().join("src/header.txt")).unwrap().trim_end().to_owned());
    config.after_includes = Some(format!(
        "\n/** The version of this header. Compare it with chiplog_version(), the version of the library. */\n\
         #define CHIPLOG_VERSION \"{version}\"\n#define CHIPLOG_VERSION_MAJOR {major}\n\
         #define CHIPLOG_VERSION_MINOR {minor}\n#define CHIPLOG_VERSION_PATCH {patch}\n\n\
         /** A time-out without limit. */\n#define CHIPLOG_FOREVER UINT64_MAX\n\n\
         /** Marks functions whose status must be checked: gcc and clang warn if it is ignored. To turn the warning off, define\n \
         * this macro as nothing before including this header. */\n\
         #ifndef CHIPLOG_MUST_USE\n#if defined(__GNUC__) || defined(__clang__)\n\
         #define CHIPLOG_MUST_USE __attribute__((warn_unused_result))\n#else\n#define CHIPLOG_MUST_USE\n#endif\n#endif"
    ));
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources() {
        builder = builder.with_src(source);
    }
    let mut out = Vec::new();
    builder.generate().unwrap().write(&mut out);
    let text = String::from_utf8(out).unwrap();
    let mut header = String::new();
    for line in text.lines() {
        if has_to_be_looked_at(line) {
            header.push_str("CHIPLOG_MUST_USE ");
        }
        header.push_str(line.trim_end());
        header.push('\n');
    }
    header
}

/// Functions whose status a program may ignore: they take effect in any case, or they request nothing.
const MAY_BE_LEFT: &[&str] = &["_close", "_cancel", "chiplog_trace", "chiplog_error_status"];

/// Whether this line begins the declaration of a function that can fail without taking effect.
fn has_to_be_looked_at(line: &str) -> bool {
    let name = line.strip_prefix("chiplog_status_t ").and_then(|rest| rest.split_once('('));
    name.is_some_and(|(name, _)| !MAY_BE_LEFT.iter().any(|end| name.ends_with(end)))
}

/// The functions that a header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut in_comment = false;
    for line in header.lines() {
        in_comment |= line.trim_start().starts_with("/*");
        let ends = line.contains("*/");
        if !in_comment && !line.starts_with('#') && !line.starts_with("typedef") {
            for (at, _) in line.match_indices("chiplog_") {
                let rest = &line[at..];
                let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
                if rest[end..].starts_with('(') && !line[..at].ends_with("(*") {
                    found.insert(rest[..end].to_owned());
                }
            }
        }
        in_comment &= !ends;
    }
    found
}

/// Reads one name or several.
fn names(entry: &toml::Value, key: &str) -> Vec<String> {
    match entry.get(key) {
        None => Vec::new(),
        Some(toml::Value::Array(list)) => list.iter().map(|name| name.as_str().unwrap().to_owned()).collect(),
        Some(one) => vec![one.as_str().unwrap().to_owned()],
    }
}

#[test]
fn the_header_matches_the_sources() {
    let path = here().join("include/chiplog.h");
    let wanted = generated();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &wanted).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    for (n, (there, wanted)) in there.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(there, wanted, "include/chiplog.h, line {}: UPDATE_HEADER=1 writes it", n + 1);
    }
    assert_eq!(there.len(), wanted.len(), "include/chiplog.h: UPDATE_HEADER=1 writes it");
}

#[test]
fn the_header_and_the_manifest_name_the_same_functions() {
    let manifest: toml::Table = fs::read_to_string(here().join("parity.toml")).unwrap().parse().unwrap();
    let mut named: BTreeMap<String, String> = BTreeMap::new();
    for entry in manifest["operation"].as_array().unwrap() {
        named.extend(names(entry, "c").into_iter().map(|c| (c, names(entry, "rust").concat())));
    }
    for entry in manifest["helper"].as_array().unwrap() {
        let c = names(entry, "c").concat();
        assert!(names(entry, "about").concat().len() > 5, "{c}: about");
        assert!(
            named.insert(c.clone(), "helper".into()).is_none(),
            "{c} is a helper and an operation, or stands twice"
        );
    }
    let declared = declared(&fs::read_to_string(here().join("include/chiplog.h")).unwrap());
    let named: BTreeSet<String> = named.into_keys().collect();
    let missing: Vec<_> = named.difference(&declared).collect();
    let untold: Vec<_> = declared.difference(&named).collect();
    assert!(missing.is_empty(), "in ffi/parity.toml and not in chiplog.h: {missing:?}");
    assert!(untold.is_empty(), "in chiplog.h and not in ffi/parity.toml: {untold:?}");
}

/// Each function's comment states ownership, threads and blocking.
#[test]
fn every_function_states_ownership_and_threads() {
    let header = fs::read_to_string(here().join("include/chiplog.h")).unwrap();
    let mut comment = String::new();
    let mut told = 0;
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("/**") {
            comment.clear();
            let mut line = line;
            while !line.contains("*/") {
                comment.push_str(line);
                line = lines.next().unwrap();
            }
        } else if line.contains("chiplog_") && line.trim_end().ends_with('(') || declared(line).len() == 1 {
            assert!(comment.contains("wnership"), "{line}: its comment does not state ownership");
            assert!(comment.contains("hread"), "{line}: its comment does not state threads");
            told += 1;
        }
    }
    assert_eq!(told, declared(&header).len());
}

/// Nobody knows that an append is lost if its status is ignored.
#[test]
fn functions_that_can_fail_are_marked_or_listed_here() {
    let header = fs::read_to_string(here().join("include/chiplog.h")).unwrap();
    let (mut marked, mut left) = (0, BTreeSet::new());
    for line in header.lines() {
        let Some(at) = line.find("chiplog_status_t chiplog_").filter(|_| line.contains('(')) else {
            continue;
        };
        let name = line[at..].trim_start_matches("chiplog_status_t ").split('(').next().unwrap();
        match line[..at].trim() {
            "CHIPLOG_MUST_USE" => marked += 1,
            "" => _ = left.insert(name.to_owned()),
            other => panic!("{other:?} before {name}"),
        }
    }
    let wanted = [
        "chiplog_error_status",
        "chiplog_follower_close",
        "chiplog_log_close",
        "chiplog_logs_close",
        "chiplog_reader_cancel",
        "chiplog_trace",
    ];
    assert_eq!(left.into_iter().collect::<Vec<_>>(), wanted);
    assert!(marked > 70, "{marked}");
}

/// Tests the checks above.
#[test]
fn the_header_reader_finds_declarations() {
    let header = "/** chiplog_no(1) */\n#define chiplog_no(x)\ntypedef void (*chiplog_no_t)(int);\n\
                  int32_t chiplog_one(void);\nconst struct chiplog_x *chiplog_two(chiplog_t *a,\n  void (*chiplog_no)(int));\n\
                  /*\n * chiplog_no()\n */\nvoid chiplog_three(int a);\n";
    assert_eq!(
        declared(header).into_iter().collect::<Vec<_>>(),
        ["chiplog_one", "chiplog_three", "chiplog_two"]
    );
}
