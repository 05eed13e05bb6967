//! The order of rooms in ARCHITECTURE.md, checked against the sources.
//!
//! [`HOUSES`] lists the rooms of each crate from the ground up: a folder, or a file on its own. The files of a room may use
//! each other, without a cycle, and those of the rooms before theirs in the list. The other tables restrict where a thing may be
//! used at all. A file's line `Must not know: …` is checked against its `use` lines by the paths that [`WORDS`] has for its words.
//! [`BEYOND`] lists the words that no path can express.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms of a crate.
struct House {
    /// The crate's folder in the workspace.
    folder: &'static str,
    /// Every room, lowest first. A new room is listed here, as low as the rooms that it uses allow.
    rooms: &'static [&'static str],
    /// Modules whose own files extend its type, and so use it: one state machine in several files.
    parts_of_one: &'static [&'static str],
}

const CORE: House = House {
    folder: "core",
    rooms: &[
        "testing::planted_bugs",
        "setters",
        "types",
        "error",
        "random",
        "vault",
        "record",
        "sync",
        "disk",
        // The cluster, as values.
        "cluster",
        // Segment files.
        "store::format",
        "store::objects",
        "store::segment",
        "store::read",
        "store::recovery",
        "store",
        "options",
        "metrics",
        "read",
        // One member of a raft group.
        "replica::wire",
        "replica::queue",
        "replica::state",
        "replica::writer",
        "replica::raft",
        "replica::open",
        "replica::repair",
        "replica::node",
        // The handles that a program holds.
        "follower",
        "api",
        "backup",
        "inspect",
        "testing",
    ],
    parts_of_one: &[
        "api::catalogue",
        "disk::sim",
        "replica::node",
        "replica::queue::proposals",
        "replica::raft",
        "replica::raft::peers",
        "replica::raft::requests",
        "replica::state::sequencer",
        "replica::state::session_table",
        "store::objects::cache",
        "testing::sim",
        "testing::sim::world",
    ],
};

/// All crates that have rooms.
const HOUSES: &[House] = &[
    CORE,
    House {
        folder: "net",
        rooms: &["notices", "wire", "served", "client", "follower", "listener", "service", "peer"],
        parts_of_one: &[],
    },
    House {
        folder: "tier",
        rooms: &[
            "options", "pieces", "location", "http", "call", "runtime", "servers", "store", "upload", "vault",
        ],
        parts_of_one: &[],
    },
    House { folder: "ffi", rooms: &["support", "abi", "handles"], parts_of_one: &[] },
    House {
        folder: "server",
        rooms: &[
            "common",
            "connect",
            "serve",
            "commands::files",
            "commands::data",
            "commands::cluster",
            "commands::run",
            "commands::meta",
            "commands",
        ],
        parts_of_one: &[],
    },
    House {
        folder: "python",
        rooms: &["convert", "runtime", "handles"],
        parts_of_one: &["handles::batch", "handles::ticket"],
    },
    House {
        folder: "benches",
        rooms: &[
            "data",
            "measure",
            "machine",
            "report",
            "bar",
            "raw",
            "engine",
            "workload",
            "bare",
            "net::process",
            "replicas",
            "cases",
            "checks",
            "reads",
            "many",
            "many_replicas",
            "tier",
            "tier_learner",
            "tier_object",
            "net::wire",
            "net::load",
            "run",
            "net",
            "bars",
            "cli",
        ],
        parts_of_one: &[],
    },
    House { folder: "sim", rooms: &["many", "figures"], parts_of_one: &[] },
    House {
        folder: "tools/load",
        rooms: &["report", "servers", "others", "attackers", "attacks", "soak"],
        parts_of_one: &[],
    },
    House {
        folder: "tools/model",
        rooms: &["rules", "state", "protocol", "symmetry", "merge", "calm", "checks", "story", "run"],
        parts_of_one: &[],
    },
    House { folder: "fuzz", rooms: &["ffi", "network", "recovery"], parts_of_one: &[] },
];

/// The paths that a file must not use because of a word in its line `Must not know`.
const WORDS: &[(&str, &[&str])] = &[
    ("anything", &["crate"]),
    // The log.
    ("raft", &["raft", "crate::replica::raft"]),
    ("raft's types", &["raft"]),
    ("raft's state", &["crate::replica::raft::Replica"]),
    (
        "files",
        &[
            "crate::disk",
            "crate::store::segment",
            "crate::store::allocator",
            "crate::store::Store",
            "std::fs",
            "tokio::fs",
        ],
    ),
    ("disks", &["crate::disk"]),
    ("segments", &["crate::store::segment"]),
    ("blocks", &["crate::store::format::block"]),
    ("formats", &["crate::store::format"]),
    ("manifests", &["crate::backup::manifest"]),
    ("threads", &["crate::sync::threads", "std::thread"]),
    ("elections", &["crate::replica::raft::election"]),
    ("entries", &["raft", "crate::store"]),
    ("bytes of messages", &["crate::replica::wire"]),
    ("how a backup is made", &["crate::backup::still"]),
    (
        "the network",
        &["crate::cluster::transport", "crate::cluster::memory_transport", "tonic", "tokio::net"],
    ),
    ("the writer", &["crate::replica::writer"]),
    ("sessions", &["crate::replica::state::session_table"]),
    ("the session table", &["crate::replica::state::session_table"]),
    ("records", &["crate::read::records", "crate::record"]),
    ("readers", &["crate::read::reader"]),
    ("positions", &["crate::read::positions"]),
    ("who waits", &["crate::sync::completion", "crate::sync::completer"]),
    ("any async runtime", &["tokio"]),
    ("time", &["crate::sync::clock", "std::time::Instant", "std::time::SystemTime"]),
    ("any real clock", &["std::time::Instant", "std::time::SystemTime"]),
    ("replicas", &["crate::replica"]),
    ("hosts", &["crate::testing::sim::host"]),
    ("clients", &["crate::testing::sim::world::client"]),
    // The network.
    ("sockets", &["tokio::net", "std::net::TcpListener", "std::net::TcpStream", "socket2"]),
    ("TLS", &["tokio_rustls", "crate::wire::tls", "crate::listener::tls"]),
    ("the parts of TLS", &["tokio_rustls"]),
    ("connections", &["crate::listener::connection", "crate::listener::connection_limit"]),
    ("listeners", &["crate::listener::connection", "crate::listener::connection_limit"]),
    ("tokens", &["crate::listener::auth::tokens", "crate::listener::auth::roles"]),
    ("caps", &["crate::listener::auth::tokens::share"]),
    ("bodies", &["http_body"]),
    ("futures", &["std::future", "futures_util"]),
    ("services", &["crate::service"]),
    ("the other services", &["crate::service::logspec", "crate::service::follow", "crate::service::admin"]),
    ("how a server works", &["crate::listener", "crate::service"]),
    ("the log's files", &["std::fs", "chiplog::ReadOnlyLog"]),
    // The server and its command line.
    ("command lines", &["crate::commands", "clap"]),
    ("terminals", &["console", "indicatif"]),
    ("logs", &["chiplog::Log"]),
    ("servers", &["crate::connect", "crate::serve", "chiplog_net"]),
    ("how servers are queried", &["chiplog_net::client"]),
    ("how anything is shown", &["crate::common::output"]),
    ("prices", &["crate::commands::cluster::cost::prices"]),
    // Benchmarks and Python.
    ("chiplog", &["chiplog", "crate::engine"]),
    ("reports", &["crate::report"]),
    ("how results are shown", &["crate::report"]),
    ("the bars", &["crate::bar", "crate::bars"]),
    ("what a bar is", &["crate::bar"]),
    ("which bars there are", &["crate::bars"]),
    ("the interpreter", &["pyo3"]),
];

/// Words in such lines that no path can express. A phrase with one of these beginnings describes behaviour, which none can either.
const BEYOND: &[&str] = &[
    "a cluster",
    "accounts",
    "amounts",
    "indexes",
    "its callers",
    "other replicas",
    "other segments",
    "terms",
    "the block's position",
    "the effects of a command",
    "the events that it signals",
    "the leader",
    "the limits",
    "the machine's page cache",
    "the order of segments beyond the [`Chain`] it is handed",
    "the other calls of its connection",
    "the requests",
    "the thread that reads it",
    "the work that they do",
];
const BEHAVIOUR: &[&str] =
    &["how", "what", "when", "where", "which", "who", "and why", "the contents of", "the meaning of"];

/// Names that only a few files may use, and why.
const CONFINED: &[(&str, &[&str], &str)] = &[
    ("unsafe", &["disk::mmap"], "unsafe code stays where its reasons are documented"),
    (
        "std::fs",
        &["disk::mmap", "disk::linux"],
        "files are reached through the seam, so that the simulated disk sees every call",
    ),
    ("SystemTime", &["options"], "time comes from Options::clock, so that tests can set it"),
    ("tokio", &[], "the log is synchronous"),
    ("std::net", &[], "the log has no network"),
    ("process::exit", &[], "a library does not end its program"),
    ("thread::spawn", &[], "a thread's stack has a fixed size, else its size is read from the environment"),
    ("thread::Builder", &["sync::threads"], "as above"),
    ("thread::scope", &["sync::threads"], "as above"),
];

/// Whether a module is the crate's root, which only lists, re-exports or starts.
fn is_root(module: &str) -> bool {
    module == "lib" || module == "main"
}

impl House {
    fn src(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(self.folder).join("src")
    }

    /// The room of a module: the room with the longest name that is the module or contains it.
    fn room(&self, module: &str) -> Option<usize> {
        let holds = |room: &str| {
            module.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let rooms = self.rooms.iter().enumerate().filter(|(_, room)| holds(room));
        rooms.max_by_key(|(_, room)| room.len()).map(|(i, _)| i)
    }

    /// The text of a module's head.
    fn head(&self, module: &str) -> String {
        let file = self.src().join(module.replace("::", "/"));
        let text = fs::read_to_string(file.with_extension("rs"));
        head_of(&text.or_else(|_| fs::read_to_string(file.join("mod.rs"))).unwrap())
    }

    /// Every module with the modules that it uses. The root only lists and re-exports.
    fn arrows(&self) -> BTreeMap<String, BTreeSet<String>> {
        let modules = modules(&self.src());
        let mut arrows = BTreeMap::new();
        for (module, source) in modules.iter().filter(|(module, _)| !is_root(module)) {
            let mut targets = BTreeSet::new();
            for path in uses(module, source) {
                let target = owner(&path, &modules);
                let target = target
                    .unwrap_or_else(|| panic!("{module} uses crate::{path}: name the module it lives in"));
                let is_part = module.strip_prefix(&target).is_some_and(|rest| rest.starts_with("::"));
                if target != *module && !(is_part && self.parts_of_one.contains(&&*target)) {
                    targets.insert(target);
                }
            }
            arrows.insert(module.clone(), targets);
        }
        arrows
    }
}

#[test]
fn every_arrow_points_downward() {
    let mut wrong = Vec::new();
    for house in HOUSES {
        for (module, targets) in house.arrows() {
            let Some(place) = house.room(&module) else { continue };
            for target in targets {
                if house.room(&target).is_none_or(|below| below > place) {
                    let folder = house.folder;
                    wrong.push(format!("{folder}: {module} uses {target}, whose room is not below its own"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that point upward:\n  {}", wrong.join("\n  "));
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    for house in HOUSES {
        let mut arrows = house.arrows();
        // A file that uses no remaining file is in no circle. A file that only such files use is in none either.
        loop {
            let left: BTreeSet<String> = arrows.keys().cloned().collect();
            arrows.values_mut().for_each(|targets| targets.retain(|target| left.contains(target)));
            arrows.retain(|_, targets| !targets.is_empty());
            if arrows.len() == left.len() {
                break;
            }
        }
        assert!(
            arrows.is_empty(),
            "{}: circles of files, and the files that use them: {arrows:#?}",
            house.folder
        );
    }
}

#[test]
fn every_file_has_a_room_and_every_room_a_file() {
    for house in HOUSES {
        let House { folder, rooms, .. } = house;
        let modules = modules(&house.src());
        let listed: BTreeSet<&str> = rooms.iter().copied().collect();
        assert_eq!(listed.len(), rooms.len(), "{folder}: a room is listed twice");
        for room in *rooms {
            let has_file = modules.keys().any(|m| m == room || m.starts_with(&format!("{room}::")));
            assert!(has_file, "{folder}: no file in {room}");
        }
        // A folder of rooms has a file of its own, which holds only their list.
        let lists =
            |source: &str| source.lines().all(|l| l.is_empty() || l.contains("mod ") || l.starts_with("#["));
        let homeless =
            modules.iter().filter(|(m, source)| !is_root(m) && house.room(m).is_none() && !lists(source));
        assert_eq!(homeless.map(|(m, _)| m).collect::<Vec<_>>(), Vec::<&String>::new(), "{folder}");
    }
}

/// A file uses nothing that its head says it must not know.
#[test]
fn files_do_not_use_what_they_must_not_know() {
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for house in HOUSES {
        let folder = house.folder;
        for (module, source) in modules(&house.src()) {
            let mut used: Vec<String> =
                uses(&module, &source).into_iter().map(|path| format!("crate::{path}")).collect();
            used.extend(foreign_uses(&source));
            used.retain(|path| !has_prefix(path, &format!("crate::{module}"), "::")); // its macros name itself
            for word in unknown_to(&house.head(&module)) {
                let Some((_, paths)) = WORDS.iter().find(|(known, _)| *known == word) else {
                    let is_behaviour = BEHAVIOUR.iter().any(|start| has_prefix(&word, start, " "));
                    if !is_behaviour && !BEYOND.contains(&&*word) {
                        wrong.push(format!("{folder}: {module} must not know {word:?}, a word of no table"));
                    }
                    continue;
                };
                checked += 1;
                for path in paths.iter().filter(|path| used.iter().any(|u| has_prefix(u, path, "::"))) {
                    wrong.push(format!("{folder}: {module} must not know {word}, and uses {path}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 130, "only {checked} words were checked");
}

#[test]
fn confined_names_are_used_in_their_files_only() {
    let mut wrong = Vec::new();
    for (module, source) in modules(&CORE.src()) {
        for (word, places, why) in CONFINED {
            if !places.contains(&module.as_str()) && source.lines().any(|line| has_word(line, word)) {
                wrong.push(format!("{module} has `{word}`: {why}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The checks above find what they are made for.
#[test]
fn checker_reads_every_form_of_use() {
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
    assert_eq!(strip("a\n#[cfg(test)]\n#[allow(x)]\nmod tests { use crate::log; }\n"), "a\n");
    let head = "//! A file. Must not know: files, or the\n//! network; what it does. It ends.\nuse x;";
    assert_eq!(unknown_to(&head_of(head)), ["files", "the network", "what it does"]);
    assert_eq!(foreign_uses("use std::{fs, io::Read as _};\nuse crate::x;\n"), ["std::fs", "std::io::Read"]);
    assert!(has_prefix("a::b", "a", "::") && !has_prefix("ab", "a", "::"));
    assert!(has_word("unsafe { x }", "unsafe") && !has_word("unsafe_code", "unsafe"));
}

/// Source of each module, without comments, strings and unit tests.
fn modules(root: &Path) -> BTreeMap<String, String> {
    let mut files = Vec::new();
    walk(root, &mut files);
    let name = |file: &PathBuf| {
        let relative = file.strip_prefix(root).unwrap().with_extension("");
        let parts: Vec<_> = relative.iter().map(|p| p.to_str().unwrap()).filter(|p| *p != "mod").collect();
        parts.join("::")
    };
    // Files that consist of tests may use anything.
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

/// The comment at a file's beginning, in one line.
fn head_of(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

/// The words of the sentence `Must not know` in a head.
fn unknown_to(head: &str) -> Vec<String> {
    let Some((_, rest)) = head.split_once("Must not know: ") else { return Vec::new() };
    let words = rest.split('.').next().unwrap().split([',', ';']).map(str::trim);
    words.map(|word| word.strip_prefix("or ").unwrap_or(word).to_owned()).collect()
}

/// Whether a path or a text begins with these parts, whole ones.
fn has_prefix(text: &str, prefix: &str, separator: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(separator))
}

/// All paths of other crates in a module's `use` declarations, with braces expanded.
fn foreign_uses(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (start, _) in source.match_indices("use ") {
        let rest = &source[start + 4..];
        let before = source[..start].lines().next_back().unwrap_or_default();
        let is_first = source[..start].ends_with('\n') || before.starts_with("pub");
        if (start == 0 || is_first) && !["crate::", "super::", "self::"].iter().any(|w| rest.starts_with(w)) {
            expand("", rest, &mut found);
        }
    }
    found
}

/// Drops line comments and string literals, and everything from the first unit-test module on (these come last).
fn strip(source: &str) -> String {
    let mut out = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let testing = line.trim_start().starts_with("#[cfg(") && line.contains("test");
        let mut behind = lines.clone().skip_while(|next| next.starts_with("#["));
        if testing && behind.next().is_some_and(|next| next.starts_with("mod ") && next.contains('{')) {
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

/// All paths below the crate's root in a module's source, with braces expanded.
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

/// Reads one path from `rest` on; returns the text after it.
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

/// The module of a path: the longest prefix that is a file.
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
