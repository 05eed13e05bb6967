//! The manifest of operations, `parity.toml`, against the Rust sources and the header. Each operation of Rust
//! exists in C or has a reason, and the manifest lists all functions of the header.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/manifest.rs"]
mod manifest;

use manifest::{DOORS, entries, exported, is_public, manifest, names, source, text};
use std::collections::BTreeSet;

/// The types whose public methods are operations: their source files and their names in the manifest.
const TYPES: &[(&str, &str, &str)] = &[
    ("core/src/api/log.rs", "Log", "Log"),
    ("core/src/api/log/damage.rs", "Log", "Log"),
    ("core/src/api/log/log_options.rs", "Log", "Log"),
    ("core/src/api/log/named.rs", "Log", "Log"),
    ("core/src/api/log/objects.rs", "Log", "Log"),
    ("core/src/api/log/segments.rs", "Log", "Log"),
    ("core/src/api/log/replica.rs", "Log", "Log"),
    ("core/src/api/logs.rs", "Logs", "Logs"),
    ("core/src/api/logs/groups.rs", "Logs", "Logs"),
    ("core/src/api/logs/names.rs", "Logs", "Logs"),
    ("core/src/api/session.rs", "Log", "Log"),
    ("core/src/api/session.rs", "Session", "Session"),
    ("core/src/record/batch.rs", "BatchBuilder", "BatchBuilder"),
    ("core/src/record/batch.rs", "Batch", "Batch"),
    ("core/src/sync/completion/mod.rs", "Ticket", "Ticket"),
    ("core/src/read/reader.rs", "Reader", "Reader"),
    ("core/src/read/canceller.rs", "Canceller", "Canceller"),
    ("core/src/read/records.rs", "RecordBatch", "RecordBatch"),
    ("core/src/read/records.rs", "StoredBatch", "StoredBatch"),
    ("core/src/api/read_only.rs", "ReadOnlyLog", "ReadOnlyLog"),
    ("core/src/follower/source.rs", "FollowSource", "FollowSource"),
    ("core/src/api/follower.rs", "FollowerLog", "FollowerLog"),
    ("core/src/backup.rs", "Backup", "Backup"),
    ("core/src/backup/cluster.rs", "ClusterBackup", "ClusterBackup"),
    ("core/src/backup/cluster_branch.rs", "ClusterBranch", "ClusterBranch"),
    ("core/src/backup/cluster_pins.rs", "ClusterPins", "ClusterPins"),
    ("core/src/backup/fetch.rs", "Backup", "Backup"),
    ("core/src/backup/inventory.rs", "Inventory", "Inventory"),
    ("core/src/backup/pin.rs", "Backup", "Backup"),
    ("core/src/backup/branch.rs", "Branch", "backup::Branch"),
    ("core/src/backup/pin.rs", "Pin", "backup::Pin"),
    ("core/src/backup/restore.rs", "Backup", "Backup"),
    ("core/src/store/objects/cluster_logs.rs", "ClusterLogs", "ClusterLogs"),
    ("core/src/sync/event_fd.rs", "Signal", "Signal"),
    ("net/src/client/blocking.rs", "Client", "Client"),
    ("net/src/client/blocking.rs", "Producer", "Producer"),
    ("net/src/client/blocking.rs", "Delivery", "Delivery"),
    ("net/src/client/blocking.rs", "Watch", "Watch"),
    ("net/src/client/blocking/reader.rs", "Reader", "client::Reader"),
    ("net/src/client/blocking/canceller.rs", "Canceller", "client::Canceller"),
    ("net/src/client/retry/class.rs", "ErrorClass", "ErrorClass"),
    ("net/src/client/credentials/token.rs", "Bearer", "Bearer"),
    ("net/src/follower/mod.rs", "Follower", "Follower"),
    ("net/src/notices.rs", "Notices", "Notices"),
];

/// Values and traits that are not handles: each language does in its own way what they do. `ServedObjects` is a vault, which C and
/// Python get by `served_objects`. `RemoteReader` is the
/// async client's reader. The async `Client`, `Producer`, `Delivery` and `Watch` share their names with the
/// blocking client's, which are listed above.
const VALUES: &[&str] = &[
    "Appended",
    "BackupInfo",
    "Bootstrap",
    "BranchOptions",
    "BranchPart",
    "Change",
    "ClientOptions",
    "ClientTls",
    "Clock",
    "Closed",
    "ClusterBranchOptions",
    "ClusterBranchPart",
    "ClusterOptions",
    "ClusterPart",
    "Codec",
    "DirectoryId",
    "Durability",
    "Error",
    "ErrorKind",
    "FollowMessage",
    "FollowEntries",
    "FollowEntry",
    "FollowSnapshot",
    "FollowFrom",
    "FollowerEvent",
    "FollowerOptions",
    "FollowerStatus",
    "Index",
    "Jumped",
    "LaterPart",
    "LogId",
    "LogInfo",
    "LogNumber",
    "LogOption",
    "LogOptions",
    "LogsOptions",
    "Member",
    "Metrics",
    "NodeId",
    "ObjectCount",
    "Options",
    "OwnedRecord",
    "PeerStatus",
    "Payload",
    "ProducerOptions",
    "EntryIndex",
    "ReadFrom",
    "ReadMode",
    "ReaderOptions",
    "Record",
    "RemoteInfo",
    "RemoteReader",
    "ReplicaStatus",
    "RestoreOptions",
    "RestoreTo",
    "Restored",
    "RestoredCluster",
    "Result",
    "Role",
    "Secret",
    "SegmentId",
    "Sequence",
    "ServedObjects",
    "SessionId",
    "SessionPayload",
    "SliceSummary",
    "Start",
    "Status",
    "Term",
    "TicketValue",
    "Timestamp",
    "Unacknowledged",
];

/// The async client. The blocking client offers the same operations.
const ASYNC: &[(&str, &str, &str)] = &[
    ("net/src/client/mod.rs", "Client", "Client"),
    ("net/src/client/producer.rs", "Producer", "Producer"),
    ("net/src/client/producer/delivery.rs", "Delivery", "Delivery"),
    ("net/src/client/reader.rs", "RemoteReader", "client::Reader"),
    ("net/src/client/cluster/watch.rs", "Watch", "Watch"),
];

/// Blocking operations with another name.
const BLOCKING_NAMES: &[(&str, &str)] = &[
    ("Producer::try_append", "Producer::try_submit"),
    ("Delivery::try_result", "Delivery::poll"),
    ("Delivery::settled", "Delivery::is_settled"),
    ("client::Reader::buffered_record", "client::Reader::next_record"),
];

/// The public methods of `wanted` in a source file.
fn methods(source: &str, wanted: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for item in syn::parse_file(source).unwrap().items {
        let syn::Item::Impl(block) = item else { continue };
        let syn::Type::Path(path) = &*block.self_ty else { continue };
        // `Ticket<T>` is a Ticket.
        let is_wanted = path.path.segments.last().is_some_and(|segment| segment.ident == wanted);
        if block.trait_.is_some() || !is_wanted {
            continue;
        }
        for item in block.items {
            if let syn::ImplItem::Fn(method) = item
                && is_public(&method.vis)
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
        let methods = methods(&source(file), name);
        assert!(!methods.is_empty(), "{file} has no public method of {name}: was it moved?");
        found.extend(methods.into_iter().map(|method| format!("{called}::{method}")));
    }
    found
}

#[test]
fn the_manifest_lists_exactly_the_operations_of_rust() {
    let manifest = manifest();
    let absent: BTreeSet<String> = entries(&manifest, "type").iter().map(|t| text(t, "rust")).collect();
    let mut there = rust_operations();
    there.retain(|op| !absent.iter().any(|t| op.rsplit_once("::").is_some_and(|(of, _)| of == t)));
    let listed: Vec<String> = entries(&manifest, "operation").iter().map(|o| text(o, "rust")).collect();
    let once: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(listed.len(), once.len(), "the manifest lists an operation twice");
    let missing: Vec<_> = there.difference(&once).collect();
    let unknown: Vec<_> = once.difference(&there).collect();
    assert!(missing.is_empty(), "public in Rust and not in ffi/parity.toml: {missing:?}");
    assert!(unknown.is_empty(), "in ffi/parity.toml and not public in Rust: {unknown:?}");
}

#[test]
fn the_blocking_client_has_each_async_operation() {
    let blocking = rust_operations();
    for (file, name, called) in ASYNC {
        let methods = methods(&source(file), name);
        assert!(!methods.is_empty(), "{file} has no public method of {name}: was it moved?");
        for method in methods {
            let own = format!("{called}::{method}");
            let other = BLOCKING_NAMES.iter().find(|(name, _)| *name == own);
            let wanted = other.map_or(own.as_str(), |(_, blocking)| blocking);
            assert!(blocking.contains(wanted), "the async {own} has no blocking {wanted}");
        }
    }
}

#[test]
fn each_operation_has_a_name_or_a_reason_per_language() {
    let manifest = manifest();
    for entry in entries(&manifest, "operation") {
        let rust = text(&entry, "rust");
        assert!(text(&entry, "about").len() > 5, "{rust}: about");
        for language in ["c", "python"] {
            let (names, reason) = (names(&entry, language), text(&entry, &format!("{language}_absent")));
            assert!(
                names.is_empty() != reason.is_empty(),
                "{rust}: set exactly one of {language} and {language}_absent"
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

/// A new type that the crates export must be classified here.
#[test]
fn every_exported_type_is_known() {
    let known: BTreeSet<&str> =
        TYPES.iter().map(|(_, name, _)| *name).chain(VALUES.iter().copied()).collect();
    let mut seen = BTreeSet::new();
    for door in DOORS {
        let names = exported(door);
        assert!(!names.is_empty(), "{door} exports nothing: was it moved?");
        let unknown: Vec<_> = names.iter().filter(|name| !known.contains(name.as_str())).collect();
        assert!(
            unknown.is_empty(),
            "exported by {door}, and neither in TYPES nor in VALUES here: {unknown:?}"
        );
        seen.extend(names);
    }
    let gone: Vec<_> = VALUES.iter().filter(|name| !seen.contains(**name)).collect();
    assert!(gone.is_empty(), "in VALUES here, but no longer exported: {gone:?}");
}

/// Tests the checks above.
#[test]
fn the_source_readers_find_items() {
    let source = "impl Log { pub fn a(&self) {} pub(crate) fn b() {} fn c() {} pub async fn d() {} }\n\
                  impl Clone for Log { fn clone(&self) {} } impl Other { pub fn e() {} }";
    assert_eq!(methods(source, "Log").into_iter().collect::<Vec<_>>(), ["a", "d"]);
}
