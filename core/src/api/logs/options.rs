//! How many named logs are kept: in how many groups, with which options.

use crate::cluster::options::ClusterOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::store::helper::Helpers;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How many named logs are kept: in how many groups, and with which options.
///
/// ```
/// use chiplog::{LogsOptions, Options};
/// let options = LogsOptions::default().groups(4).options(Options::with_segment_bytes(16 << 20));
/// assert_eq!(options.groups, 4);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct LogsOptions {
    /// The number of groups, from 1 to 1024. A group has one or two threads and one sync at a time; all groups on a disk share
    /// a further thread, also with groups of clones of these options. Opening a
    /// directory with a larger number adds groups; a smaller one leaves all there are. Default 2.
    pub groups: u32,
    /// Further directories for the groups, each meant to be on a disk of its own: then the groups' syncs and writes go to
    /// several disks. A new group goes to the one of them with the fewest groups, the first of these. A group that exists is
    /// found in any of them, and in the directory of the logs, where the system log stays. They have to exist, apart from
    /// each other and from the directory of the logs. Opening fails if one that has groups is not listed, or is not mounted.
    /// Up to 64. Default none: all groups are in the directory of the logs.
    pub directories: Vec<PathBuf>,
    /// The options of each group. Retention by size or age is set for single logs, not here. With an object store each group has
    /// objects of its own in it, and so has the catalogue; `local_bytes` and `local_age` are of each group. Each segment begins with a
    /// table of the group's logs: with segments below 8 MiB, lower `sessions_max` to make room for it.
    pub options: Options,
    /// Makes each group a replica of a cluster: called with the group's number. Group 0 is that of the catalogue; named
    /// logs are in groups from 1. Each group needs a transport of its own.
    pub cluster: Option<Arc<dyn Fn(u32) -> ClusterOptions + Send + Sync>>,
    /// The helper threads of the groups, one a disk.
    helpers: Helpers,
}

/// The group of the system log.
pub(super) const SYSTEM_GROUP: u32 = 0;

/// The most groups.
pub(super) const GROUPS_MAX: u32 = 1024;

/// The size of the system log's segments.
pub(super) const SYSTEM_SEGMENT_BYTES: u32 = 1 << 20;

/// A change of the catalogue goes to the object store within about this time, and that of an upload. The groups' objects have
/// records of logs that the catalogue has to name.
const SYSTEM_OBJECT_AGE: Duration = Duration::from_secs(1);
/// Objects of the catalogue stay at least as long. So the snapshot that stands for discarded records is stored before they go.
const SYSTEM_DELETE_DELAY_MIN: Duration = Duration::from_secs(600);

impl Default for LogsOptions {
    fn default() -> Self {
        Self {
            groups: 2,
            directories: Vec::new(),
            options: Options::default(),
            cluster: None,
            helpers: Helpers::default(),
        }
    }
}

impl fmt::Debug for LogsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { groups, directories, options, cluster, .. } = self;
        f.debug_struct("LogsOptions")
            .field("groups", groups)
            .field("directories", directories)
            .field("options", options)
            .field("cluster", &cluster.is_some())
            .finish_non_exhaustive()
    }
}

impl LogsOptions {
    /// Sets [`Self::groups`].
    #[must_use]
    pub fn groups(mut self, groups: u32) -> Self {
        self.groups = groups;
        self
    }

    /// Sets [`Self::directories`].
    #[must_use]
    pub fn directories(mut self, directories: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.directories = directories.into_iter().map(Into::into).collect();
        self
    }

    /// Sets [`Self::options`].
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets [`Self::cluster`].
    #[must_use]
    pub fn cluster(mut self, cluster: impl Fn(u32) -> ClusterOptions + Send + Sync + 'static) -> Self {
        self.cluster = Some(Arc::new(cluster));
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
        if !(1..=GROUPS_MAX).contains(&self.groups) {
            return invalid(format!("option groups is {}; it has to be from 1 to {GROUPS_MAX}", self.groups));
        }
        if self.options.cluster.is_some() {
            return invalid(
                "each group needs options of a cluster of its own: set LogsOptions::cluster".into(),
            );
        }
        if self.options.retention_bytes.is_some() || self.options.retention_age.is_some() {
            return invalid(
                "retention_bytes and retention_age are of a log on its own: discard records of each named log".into(),
            );
        }
        if self.options.logs_max() == 0 {
            return invalid(format!(
                "segments of {} bytes have no room for a table of logs beside {} sessions: raise segment_bytes, or \
                 lower sessions_max",
                self.options.segment_bytes, self.options.sessions_max
            ));
        }
        self.options.check()
    }

    /// The options with which a group is opened; 0 is that of the system log, whose records are small and few. For a
    /// program that opens the groups itself: see [`Logs::of`].
    pub fn of_group(&self, group: u32) -> Options {
        if group == SYSTEM_GROUP {
            return self.of_system();
        }
        let cluster = self.cluster.as_ref().map(|cluster| cluster(group));
        Options { cluster, helpers: Some(self.helpers.clone()), ..self.options.clone() }
    }

    pub(super) fn of_system(&self) -> Options {
        let Options { create, read_mode, queue_timeout, ref vault, object_age, cache_bytes, .. } =
            self.options;
        let (slice_interval, slice_bytes) = (self.options.slice_interval, self.options.slice_bytes);
        let (object_scrub, object_delete_delay) =
            (self.options.object_scrub, self.options.object_delete_delay);
        let (clock, cluster) =
            (self.options.clock.clone(), self.cluster.as_ref().map(|cluster| cluster(SYSTEM_GROUP)));
        Options {
            create,
            read_mode,
            queue_timeout,
            clock,
            cluster,
            // The catalogue names the logs whose records are in the objects of the groups. It stays on the disk as well.
            vault: vault.clone(),
            object_bytes: SYSTEM_SEGMENT_BYTES,
            object_age: Some(object_age.map_or(SYSTEM_OBJECT_AGE, |age| age.min(SYSTEM_OBJECT_AGE))),
            cache_bytes,
            object_scrub,
            object_delete_delay: object_delete_delay.max(SYSTEM_DELETE_DELAY_MIN),
            // The slices of a group are of little use without the names of its logs.
            slice_interval,
            slice_bytes,
            helpers: Some(self.helpers.clone()),
            is_catalogue: true,
            // It has none: their room is for objects.
            sessions_max: 1,
            ..Options::with_segment_bytes(SYSTEM_SEGMENT_BYTES)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::log::Log;
    use crate::error::{Error, ErrorKind};
    use crate::types::Index;
    use crate::vault::{HookedVault, MemoryVault, Vault};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    #[test]
    fn catalogue_has_room_for_objects_of_single_records() {
        let options = LogsOptions::default().of_system();
        assert!(options.objects_max() > 2000, "{}", options.objects_max());
        options.check().unwrap();
    }

    /// Its objects are deleted only once the snapshot that replaces them is in an object.
    #[test]
    fn store_never_has_only_the_begin_of_a_catalogue() {
        let dir = tempfile::tempdir().unwrap();
        let below = Arc::new(MemoryVault::default());
        let vault = Arc::new(HookedVault::new(below.clone()));
        let options = Options {
            vault: Some(vault.clone()),
            object_age: Some(Duration::from_millis(20)),
            object_delete_delay: Duration::ZERO,
            ..LogsOptions::default().of_system()
        };
        let log = Log::open(dir.path(), options).unwrap();
        let eventually = |what: &str, holds: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !holds() {
                assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        log.append(&b"old"[..]).unwrap();
        eventually("it is stored", &|| log.metrics().stored_index == 1);
        let refused = Arc::new(AtomicU32::new(0));
        let count = refused.clone();
        vault.set(move |call, name| match call == "put" && name.contains("/o/") {
            true => {
                count.fetch_add(1, Ordering::Relaxed);
                Err(Error::new(ErrorKind::Unavailable, "no room"))
            }
            false => Ok(()),
        });
        log.append(&b"snapshot"[..]).unwrap();
        eventually("it cannot be stored", &|| refused.load(Ordering::Relaxed) > 0);
        log.discard(Index(2)).unwrap();
        let before = refused.load(Ordering::Relaxed);
        // A deletion that is due comes before the next attempt.
        eventually("it is tried again", &|| refused.load(Ordering::Relaxed) > before + 1);
        let folder = format!("{:032x}/o/", log.log_id().get());
        let numbers = || below.list(&folder).unwrap().len();
        assert_eq!(numbers(), 1, "the old object stays");
        vault.set(|_, _| Ok(()));
        eventually("the new one takes its place", &|| log.metrics().stored_index == 2 && numbers() == 1);
        log.close().unwrap();
    }
}
