//! Which file may use which: the arrows of ARCHITECTURE.md, checked against what the sources say.
//!
//! [`ORDER`] lists every file of the crate from the ground up. A file may use those above it in the list, so
//! there can be no circle, and what a reader needs to know for a file stands before it. The other tables say
//! where a thing may be touched at all.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every module, lowest first. A new file gets its place here: as low as what it uses allows.
const ORDER: &[&str] = &[
    // Values and bytes: no files, no threads.
    "planted",
    "types",
    "error",
    "checksum",
    "codec",
    "batch",
    // Waiting and waking.
    "threads",
    "futex",
    "signal",
    "completion",
    "promise",
    "positions",
    "canceller",
    "moment",
    "stats",
    "limping",
    "log_clock",
    // What is done once only; and the bytes of the files.
    "session::encoding",
    "session",
    "store::block",
    "store::geometry",
    "store::layout",
    // The cluster, as values.
    "membership",
    "transport",
    "transport::memory",
    "transport::peer_queue",
    "cluster",
    "config",
    "log_options",
    // The seam to storage.
    "disk::map",
    "disk",
    "disk::real",
    "disk::sim::rng",
    "disk::sim::file",
    "disk::sim::state",
    "disk::sim::faults",
    "disk::sim::crashes",
    "disk::sim",
    // The store: segments, and what gets them ready, reads and writes them.
    "store::damage",
    "store::places",
    "store::segment",
    "store::header",
    "store::prepared",
    "store::identity",
    "store::scan",
    "store::files",
    "store::walk",
    "store::follow",
    "store::wound",
    "store::restore",
    "store::decision",
    "store::blocks",
    "store::cursor",
    "store::archive",
    "store::turn",
    "store",
    "store::recovery",
    // What goes in: appends, commands, messages, questions.
    "mail",
    "gather",
    // The replica: orders, plans, writes.
    "raft_codec",
    "fetch",
    "mender",
    "sequence",
    "snapshot",
    "fed",
    "plan",
    "writing",
    "replica::storage",
    "replica::fixtures",
    "replica::ticking",
    "replica::ordering",
    "replica::checking",
    "replica::applying",
    "replica::room",
    "replica::asks",
    "replica::options",
    "replica::lend",
    "replica::pace",
    "replica::introduction",
    "replica::peers",
    "replica::handover",
    "replica::readies",
    "replica",
    "tend",
    "open",
    "node",
    "driver",
    "following",
    "diagnosis",
    "repairing::members",
    "repairing::terms",
    "repairing::superseded",
    "repairing::treatment",
    "repairing",
    "rescue",
    // What a program holds.
    "records",
    "reader",
    "feed",
    "log",
    "followed",
    "exactly_once",
    "viewer",
    "backup::manifest",
    "backup::still",
    "backup",
    "restore",
    // Tools over all of it.
    "inspect::window",
    "inspect::batches",
    "inspect::report",
    "inspect::segment",
    "inspect",
    "fuzzing",
    // The cluster simulated.
    "sim::clock",
    "sim::fault",
    "sim::harm",
    "sim::failover",
    "sim::story",
    "sim::history",
    "sim::linear",
    "sim::network",
    "sim::plan",
    "sim::kept",
    "sim::threads",
    "sim::outbox",
    "sim::machine",
    "sim::copy",
    "sim::patient",
    "sim::host",
    "sim::oracle",
    "sim::world",
    "sim::world::admin",
    "sim::world::client",
    "sim::world::drill",
    "sim::world::damage",
    "sim::world::followers",
    "sim::world::nemesis",
    "sim::world::options",
    "sim::world::watch",
    "sim::world::leaving",
    "sim::world::process",
    "sim::run",
    "sim::directed::one_replica",
    "sim::directed",
    "sim::bugs",
    "sim",
];

/// Modules whose own files extend its type, and so name it: one state machine in several files.
const PARTS_OF_ONE: &[&str] = &["replica", "session", "sim", "sim::world"];

/// What may be named in a few files only, and why.
const CONFINED: &[(&str, &[&str], &str)] = &[
    ("unsafe", &["disk::map"], "unsafe code stays where its reasons are written down"),
    (
        "std::fs",
        &["disk::map", "disk::real"],
        "files are reached through the seam, so that the simulated disk sees every call",
    ),
    ("SystemTime", &["config"], "time comes from Options::clock, so that tests can set it"),
    ("tokio", &[], "the log is synchronous"),
    ("std::net", &[], "the log knows no network"),
    ("process::exit", &[], "a library does not end its program"),
    ("thread::spawn", &[], "a thread's stack has a stated size, else its size is read from the environment"),
    ("thread::Builder", &["threads"], "as above"),
    ("thread::scope", &[], "as above"),
];

#[test]
fn every_arrow_points_downward() {
    let place: BTreeMap<&str, usize> = ORDER.iter().enumerate().map(|(i, m)| (*m, i)).collect();
    let modules = modules();
    let mut wrong = Vec::new();
    for (module, source) in &modules {
        if module == "lib" {
            continue; // the root only lists and re-exports
        }
        for path in uses(module, source) {
            let Some(target) = owner(&path, &modules) else {
                wrong.push(format!("{module} uses crate::{path}: name the module it lives in"));
                continue;
            };
            // A module's own files are one piece of work.
            let is_part = module.strip_prefix(&target).is_some_and(|rest| rest.starts_with("::"));
            if target != *module
                && !(is_part && PARTS_OF_ONE.contains(&&*target))
                && place.get(target.as_str()) >= place.get(module.as_str())
            {
                wrong.push(format!("{module} uses {target} (crate::{path}), which is not below it"));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that point upward:\n  {}", wrong.join("\n  "));
}

#[test]
fn the_order_names_every_file_once_and_nothing_else() {
    let listed: BTreeSet<&str> = ORDER.iter().copied().collect();
    assert_eq!(listed.len(), ORDER.len(), "a module stands in ORDER twice");
    let modules = modules();
    let files: BTreeSet<&str> = modules.keys().map(String::as_str).filter(|m| *m != "lib").collect();
    assert_eq!(files, listed, "left: files of core/src, right: ORDER");
}

#[test]
fn some_things_are_touched_in_few_places() {
    let mut wrong = Vec::new();
    for (module, source) in modules() {
        for (word, places, why) in CONFINED {
            if !places.contains(&module.as_str()) && source.lines().any(|line| has_word(line, word)) {
                wrong.push(format!("{module} has `{word}`: {why}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The checks above see what they have to see.
#[test]
fn the_checker_reads_every_form_of_use() {
    let source = "use crate::types::{Index, Term};\nuse crate::{error::Error, batch};\nuse super::block::{self, x};\n\
                  fn f() { crate::disk::real::open(); let s = \"crate::not\"; } // crate::comment\n\
                  use super::*;\nlet x = super::super::log::Log;\npub(crate) fn g() {}";
    let found: Vec<String> = uses("store::layout", &strip(source));
    let expected = [
        "types::Index",
        "types::Term",
        "error::Error",
        "batch",
        "store::block::self",
        "store::block::x",
        "disk::real::open",
        "store::*",
        "log::Log",
    ];
    assert_eq!(found, expected);
    assert_eq!(strip("a\n#[cfg(test)]\nmod tests { use crate::log; }\n"), "a\n");
    assert!(has_word("unsafe { x }", "unsafe") && !has_word("unsafe_code", "unsafe"));
}

/// Source of each module, without comments, strings and unit tests.
fn modules() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    walk(&root, &mut files);
    let name = |file: &PathBuf| {
        let relative = file.strip_prefix(&root).unwrap().with_extension("");
        let parts: Vec<_> = relative.iter().map(|p| p.to_str().unwrap()).filter(|p| *p != "mod").collect();
        parts.join("::")
    };
    // Files that are tests as a whole may use anything.
    let files = files.iter().filter(|f| !name(f).split("::").any(|p| p == "tests" || p == "models"));
    files.map(|f| (name(f), strip(&fs::read_to_string(f).unwrap()))).collect()
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

/// Drops line comments and string literals, and all from the first unit-test module on (they stand last).
fn strip(source: &str) -> String {
    let mut out = String::new();
    let mut lines = source.lines().peekable();
    while let Some(line) = lines.next() {
        let testing = line.trim_start().starts_with("#[cfg(") && line.contains("test");
        if testing && lines.peek().is_some_and(|next| next.starts_with("mod ") && next.contains('{')) {
            break;
        }
        let mut quoted = false;
        let mut before = ' ';
        let mut code = String::new();
        for c in line.chars() {
            if c == '"' && before != '\\' && before != '\'' {
                quoted = !quoted;
            } else if !quoted {
                code.push(c);
            }
            before = c;
        }
        out.push_str(code.split("//").next().unwrap_or_default().trim_end());
        out.push('\n');
    }
    out
}

/// All paths below the crate's root that a module's source names, braces opened out.
fn uses(module: &str, source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let words = ["crate::", "super::"];
    let mut at = 0;
    while let Some((start, word)) =
        words.iter().filter_map(|w| source[at..].find(w).map(|i| (at + i, *w))).min_by_key(|(i, _)| *i)
    {
        let mut rest = &source[start..];
        at = start + word.len();
        if source[..start].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
            continue;
        }
        let mut base: Vec<&str> = if word == "crate::" { Vec::new() } else { module.split("::").collect() };
        rest = rest.strip_prefix("crate::").unwrap_or(rest);
        while let Some(more) = rest.strip_prefix("super::") {
            base.pop();
            rest = more;
        }
        at = source.len() - rest.len();
        expand(&base.join("::"), rest, &mut found);
    }
    found
}

/// Follows one path from `rest` on; returns what stands behind it.
fn expand<'a>(base: &str, rest: &'a str, found: &mut Vec<String>) -> &'a str {
    let join = |part: &str| if base.is_empty() { part.to_owned() } else { format!("{base}::{part}") };
    let rest = rest.trim_start();
    if let Some(mut inner) = rest.strip_prefix('{') {
        loop {
            inner = inner.trim_start();
            if let Some(after) = inner.strip_prefix('}') {
                return after;
            }
            let before = inner.len();
            inner = expand(base, inner, found).trim_start();
            inner = inner.strip_prefix(',').unwrap_or(inner);
            if inner.is_empty() || inner.len() == before {
                return inner;
            }
        }
    }
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '*')).unwrap_or(rest.len());
    let (part, behind) = rest.split_at(end);
    match behind.strip_prefix("::") {
        Some(more) if !more.starts_with('<') => expand(&join(part), more, found),
        _ => {
            found.push(join(part));
            // `x as y`
            let alias = behind.trim_start().strip_prefix("as ").map(str::trim_start);
            alias.map_or(behind, |a| a.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'))
        }
    }
}

/// The module that a path leads into: the longest one that is a file.
fn owner(path: &str, modules: &BTreeMap<String, String>) -> Option<String> {
    let mut parts: Vec<&str> = path.split("::").collect();
    while !parts.is_empty() {
        let name = parts.join("::");
        if modules.contains_key(&name) {
            return Some(name);
        }
        parts.pop();
    }
    None
}

fn has_word(line: &str, word: &str) -> bool {
    let edge = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word)
        .any(|(i, _)| edge(line[..i].chars().next_back()) && edge(line[i + word.len()..].chars().next()))
}
