//! Objects: the servers keep older records in an object store, a directory. In the end nothing is there that nobody needs, all of it is
//! sound, and after the loss of all servers it alone gives every record back.

use super::clients;
use super::clients::Shared;
use crate::servers::{PATIENCE, Servers};
use anyhow::{Context, Result, ensure};
use chiplog::Index;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Small objects, and little on the servers' disks: many steps, and reads that go to the store.
const SETTINGS: [&str; 5] = [
    "groups=0", // one log: the store has objects of no other
    "objects.object_bytes=1MiB",
    "objects.object_age_seconds=2",
    "objects.local_bytes=8MiB",
    "objects.object_delete_delay_seconds=5",
];

/// Where a record is before its append is acknowledged.
#[derive(Clone, Copy, Debug, Default, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Durability {
    /// On the disks of a majority of the servers.
    #[default]
    Majority,
    /// Such an append is in the object store soon after, too, in a slice.
    #[serde(rename = "majority+slices")]
    #[value(name = "majority+slices")]
    MajoritySlices,
    /// In the object store; the servers replicate references to it.
    Object,
}

impl Durability {
    fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Majority => &[],
            Self::MajoritySlices => &["objects.slice_interval_millis=50"],
            Self::Object => &["objects.slice_interval_millis=50", "objects.payload_slices=true"],
        }
    }
}

/// The contents of the object store in the end.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Stored {
    pub(crate) objects: u64,
    /// Objects that servers left although nothing needs them, before they were removed.
    pub(crate) left: u64,
    /// Records that came back after the loss of all servers.
    pub(crate) restored: u64,
}

pub(crate) fn settings(store: &Path, durability: Durability) -> Vec<String> {
    let place = format!("object_store={}", store.display());
    let settings = SETTINGS.iter().chain(durability.settings());
    settings.map(|setting| (*setting).to_owned()).chain([place]).collect()
}

/// After all appends have ended, with all replicas alike: destroys the servers. `last` is the last record, and `whole` the
/// first one that the servers have, and a digest from there on.
pub(crate) fn judge(
    servers: &Servers,
    shared: &Shared,
    store: &Path,
    last: Index,
    whole: (Index, u64),
) -> Result<Stored> {
    let begun = Instant::now();
    let stored =
        |node| servers.figure(node, "chiplog_stored_index").is_ok_and(|index| index as u64 >= last.get());
    while !servers.nodes().all(stored) {
        ensure!(begun.elapsed() < PATIENCE, "not all records up to {last} are stored");
        thread::sleep(Duration::from_millis(50));
    }
    let place = store.display().to_string();
    servers.command(&["tier", "verify", &place])?;
    let before = Garbage::look(servers, &place, &[])?;
    Garbage::look(servers, &place, &["--delete"])?;
    let after = Garbage::look(servers, &place, &[])?;
    ensure!(after.left == 0, "tier gc leaves {} objects that nothing needs", after.left);
    for node in servers.nodes() {
        servers.kill(node)?;
        let data = servers.data(node);
        fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))?;
    }
    let backup: PathBuf = store.with_extension("backup");
    let (backup, data) = (backup.display().to_string(), servers.data(1).display().to_string());
    servers.command(&["tier", "fetch", &place, &backup])?;
    servers.command(&["restore", &backup, &data])?;
    servers.run(1, &[])?;
    let restored = clients::digest_from(shared, servers, 1, whole.0, last)?;
    ensure!(restored == whole, "the log that came back differs: {restored:x?}, not {whole:x?}");
    Ok(Stored { objects: after.needed, left: before.left, restored: last.get() - whole.0.get() + 1 })
}

/// The objects that something needs, and those that nothing needs.
#[derive(Clone, Copy, Debug)]
struct Garbage {
    needed: u64,
    left: u64,
}

impl Garbage {
    fn look(servers: &Servers, place: &str, more: &[&str]) -> Result<Self> {
        let said = servers.output(&[&["tier", "gc", place, "--after", "0s", "--json"], more].concat())?;
        let line: Value = serde_json::from_str(said.trim()).with_context(|| format!("tier gc: {said}"))?;
        let figure =
            |name: &str| line[name].as_u64().with_context(|| format!("tier gc says no {name}: {said}"));
        let kinds = ["unneeded_objects", "unneeded_payloads", "old_begins", "half_written", "unknown"];
        let left = kinds.into_iter().map(figure).sum::<Result<u64>>()?;
        Ok(Self { needed: figure("needed_objects")?, left })
    }
}
