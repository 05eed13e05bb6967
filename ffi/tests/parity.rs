//! The manifest of operations, `parity.toml`, against the Rust sources and the header: nothing that Rust can do is missing
//! in C without a reason, and nothing stands anywhere that the manifest does not tell of.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The types whose public methods are operations: where they are written, and what the manifest calls them.
const TYPES: &[(&str, &str, &str)] = &[
    ("core/src/log.rs", "Log", "Log"),
    ("core/src/exactly_once.rs", "Log", "Log"),
    ("core/src/exactly_once.rs", "Session", "Session"),
    ("core/src/batch.rs", "BatchBuilder", "BatchBuilder"),
    ("core/src/batch.rs", "Batch", "Batch"),
    ("core/src/completion.rs", "Ticket", "Ticket"),
    ("core/src/completion.rs", "Answer", "Answer"),
    ("core/src/reader.rs", "Reader", "Reader"),
    ("core/src/records.rs", "RecordBatch", "RecordBatch"),
    ("core/src/records.rs", "StoredBatch", "StoredBatch"),
    ("core/src/viewer.rs", "Viewer", "Viewer"),
    ("core/src/feed.rs", "Feed", "Feed"),
    ("core/src/followed.rs", "Followed", "Followed"),
    ("core/src/signal.rs", "Signal", "Signal"),
    ("net/src/client/blocking.rs", "Client", "Client"),
    ("net/src/client/blocking.rs", "Producer", "Producer"),
    ("net/src/client/blocking.rs", "Delivery", "Delivery"),
    ("net/src/client/blocking.rs", "Watch", "Watch"),
    ("net/src/client/blocking/reader.rs", "Reader", "client::Reader"),
    ("net/src/follower/mod.rs", "Follower", "Follower"),
];

/// Values and traits that are no handles: what they do every language does in its own way.
const VALUES: &[&str] = &[
    "Answer",
    "Appended",
    "Backlog",
    "Bootstrap",
    "Change",
    "Clock",
    "Cluster",
    "Codec",
    "DirectoryId",
    "Error",
    "ErrorKind",
    "Fed",
    "FedEntries",
    "FedEntry",
    "FedState",
    "FeedFrom",
    "ForkGuard",
    "Index",
    "Info",
    "Jumped",
    "LogId",
    "Member",
    "NodeId",
    "Options",
    "OwnedRecord",
    "PeerStatus",
    "RaftIndex",
    "ReadMode",
    "Record",
    "Result",
    "Role",
    "SegmentId",
    "Sequence",
    "SessionId",
    "Start",
    "Stats",
    "Status",
    "Term",
    "Timestamp",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn manifest() -> toml::Table {
    fs::read_to_string(root().join("ffi/parity.toml")).unwrap().parse().unwrap()
}

/// The entries of one kind.
fn entries(manifest: &toml::Table, kind: &str) -> Vec<toml::Table> {
    let list = manifest.get(kind).and_then(|list| list.as_array()).unwrap();
    list.iter().map(|entry| entry.as_table().unwrap().clone()).collect()
}

/// One name or several.
fn names(entry: &toml::Table, key: &str) -> Vec<String> {
    let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
    match entry.get(key) {
        None => Vec::new(),
        Some(toml::Value::Array(list)) => list.iter().map(text).collect(),
        Some(one) => vec![text(one)],
    }
}

fn text(entry: &toml::Table, key: &str) -> String {
    names(entry, key).concat()
}

/// The public methods of `wanted` in a source file.
fn methods(source: &str, wanted: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for item in syn::parse_file(source).unwrap().items {
        let syn::Item::Impl(block) = item else { continue };
        let syn::Type::Path(path) = &*block.self_ty else { continue };
        if block.trait_.is_some() || !path.path.is_ident(wanted) {
            continue;
        }
        for item in block.items {
            if let syn::ImplItem::Fn(method) = item
                && matches!(method.vis, syn::Visibility::Public(_))
            {
                found.insert(method.sig.ident.to_string());
            }
        }
    }
    found
}

/// Every public operation of Rust, by the manifest's names.
fn rust_operations() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (file, name, called) in TYPES {
        let methods = methods(&fs::read_to_string(root().join(file)).unwrap(), name);
        assert!(!methods.is_empty(), "{file} has no public method of {name}: where did it go?");
        found.extend(methods.into_iter().map(|method| format!("{called}::{method}")));
    }
    found
}

#[test]
fn every_operation_of_rust_stands_in_the_manifest_and_no_other() {
    let manifest = manifest();
    let absent: BTreeSet<String> = entries(&manifest, "type").iter().map(|t| text(t, "rust")).collect();
    let mut there = rust_operations();
    there.retain(|op| !absent.iter().any(|t| op.rsplit_once("::").is_some_and(|(of, _)| of == t)));
    let listed: Vec<String> = entries(&manifest, "operation").iter().map(|o| text(o, "rust")).collect();
    let once: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(listed.len(), once.len(), "an operation stands in the manifest twice");
    let missing: Vec<_> = there.difference(&once).collect();
    let unknown: Vec<_> = once.difference(&there).collect();
    assert!(missing.is_empty(), "public in Rust and not in ffi/parity.toml: {missing:?}");
    assert!(unknown.is_empty(), "in ffi/parity.toml and not public in Rust: {unknown:?}");
}

#[test]
fn each_language_has_a_name_or_a_reason() {
    let manifest = manifest();
    for entry in entries(&manifest, "operation") {
        let rust = text(&entry, "rust");
        assert!(text(&entry, "about").len() > 5, "{rust}: about");
        for language in ["c", "python"] {
            let (names, reason) = (names(&entry, language), text(&entry, &format!("{language}_absent")));
            assert!(
                names.is_empty() != reason.is_empty(),
                "{rust}: {language} or {language}_absent, one of them"
            );
            assert!(
                names.iter().all(|n| !n.is_empty()) && (reason.is_empty() || reason.len() > 10),
                "{rust}"
            );
        }
    }
    for entry in entries(&manifest, "type") {
        for key in ["rust", "about", "c_absent", "python_absent"] {
            assert!(text(&entry, key).len() > 3, "{entry:?}: {key}");
        }
    }
}

/// A new type that the crates export is looked at here first.
#[test]
fn every_exported_type_is_known() {
    let known: BTreeSet<&str> =
        TYPES.iter().map(|(_, name, _)| *name).chain(VALUES.iter().copied()).collect();
    let lib = fs::read_to_string(root().join("core/src/lib.rs")).unwrap();
    let mut unknown = Vec::new();
    for item in syn::parse_file(&lib).unwrap().items {
        if let syn::Item::Use(exported) = item
            && matches!(exported.vis, syn::Visibility::Public(_))
        {
            leaves(&exported.tree, &mut unknown);
        }
    }
    unknown.retain(|name| name.chars().any(char::is_lowercase) && !known.contains(name.as_str()));
    assert!(unknown.is_empty(), "exported by core, and neither in TYPES nor in VALUES here: {unknown:?}");
}

fn leaves(tree: &syn::UseTree, found: &mut Vec<String>) {
    match tree {
        syn::UseTree::Path(path) => leaves(&path.tree, found),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, found)),
        syn::UseTree::Name(name) => found.push(name.ident.to_string()),
        syn::UseTree::Rename(name) => found.push(name.rename.to_string()),
        syn::UseTree::Glob(_) => panic!("core exports by name"),
    }
}

/// The checks above see what they have to see.
#[test]
fn the_readers_read() {
    let source = "impl Log { pub fn a(&self) {} pub(crate) fn b() {} fn c() {} pub async fn d() {} }\n\
                  impl Clone for Log { fn clone(&self) {} } impl Other { pub fn e() {} }";
    assert_eq!(methods(source, "Log").into_iter().collect::<Vec<_>>(), ["a", "d"]);
}
