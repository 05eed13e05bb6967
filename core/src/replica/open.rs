//! Opening: from a directory to a store and the state after its blocks. Creates a log if there is none.
//!
//! The order in which a new log is created, each step durable before the next:
//!
//! 1. the lock file, empty; 2. the first segment's file; 3. its opening block; 4. the identity.
//!
//! A crash before step 4 leaves no log: the next opening removes these files.

use crate::cluster::membership::{ALONE, Member, Membership};
use crate::cluster::options::{Bootstrap, ClusterOptions};
use crate::cluster::transport::{Envelope, Inbox, Transport};
use crate::disk::linux::{RealDisk, missing_above};
use crate::disk::{Disk, Lock};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::replica::state::sequencer::{Opened, Owner, Replayed, Sequencer};
use crate::replica::state::snapshot::FollowSnapshot;
use crate::store::allocator::{AHEAD, Allocator};
use crate::store::format::block::{BLOCK_HEADER_BYTES, Kind};
use crate::store::format::geometry::{SEGMENT_HEADER_BYTES, room_of};
use crate::store::format::identity::{IDENTITY_FILE, Identity};
use crate::store::objects::cache::is_object_file;
use crate::store::objects::suspects;
use crate::store::read::segment_files::SegmentFile;
use crate::store::recovery::{Survey, repair, survey};
use crate::store::segment::{Segments, file_name, file_number};
use crate::store::whole_segments::is_aside;
use crate::store::{NewBlock, PROOF_BYTES_MAX, Resume, Store};
use crate::types::{DirectoryId, EntryIndex, Index, NodeId};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The open files of a log, and the state that they hold.
pub(crate) struct RecoveredLog {
    lock: Option<Box<dyn Lock>>,
    pub(crate) identity: Identity,
    pub(crate) store: Store,
    /// The state after the last block, with all pending effects.
    pub(crate) sequencer: Sequencer,
    /// The options of its cluster; those of a log on its own are made up.
    pub(crate) cluster: ClusterOptions,
    pub(crate) segments: Arc<Segments>,
    /// Whether the log was created just now.
    pub(crate) is_new: bool,
}

impl RecoveredLog {
    /// Takes the lock on the directory, for the thread that ends last. Panics if it was taken before.
    pub(crate) fn take_lock(&mut self) -> Box<dyn Lock> {
        match self.lock.take() {
            Some(lock) => lock,
            None => unreachable!("the lock is taken only once"),
        }
    }
}

/// The contents of a directory.
pub(crate) enum Directory {
    /// A log that was opened.
    Ready(Box<RecoveredLog>),
    /// A replica's log that has to be repaired before it opens.
    DamagedLog(Box<DamagedLog>),
}

/// A replica's log that recovery refuses because of damage, and for no other reason.
pub(crate) struct DamagedLog {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) options: Options,
    pub(crate) cluster: ClusterOptions,
    pub(crate) identity: Identity,
    /// The segments of the log, once it is open.
    pub(crate) segments: Arc<Segments>,
    /// The error of the recovery.
    pub(crate) why: Error,
    lock: Option<Box<dyn Lock>>,
}

impl DamagedLog {
    /// Tries to open it again after a repair. None: there is more damage, described by [`Self::why`].
    ///
    /// # Errors
    /// The reason why the log does not open, if it is not damage.
    pub(crate) fn open_again(&mut self) -> Result<Option<RecoveredLog>> {
        match recover(self.disk.clone(), &self.options, self.identity, self.segments.clone()) {
            Ok(opened) => Ok(Some(RecoveredLog { lock: self.lock.take(), ..opened })),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.why = error;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(any(test, feature = "testing"))]
/// Opens or creates the log on `disk`.
pub(crate) fn open(disk: Arc<dyn Disk>, options: &Options) -> Result<RecoveredLog> {
    match open_or_find_damage(disk, options)? {
        Directory::Ready(opened) => Ok(*opened),
        Directory::DamagedLog(damaged) => Err(damaged.why),
    }
}

/// As [`open`]. With cluster options, damage is not an error.
pub(crate) fn open_or_find_damage(disk: Arc<dyn Disk>, options: &Options) -> Result<Directory> {
    let existing = Identity::read(&*disk);
    if let Ok(None) = existing
        && !options.create
    {
        return Err(no_log(&*disk));
    }
    let lock = lock(&*disk)?;
    // Again, under the lock: another process may have created it meanwhile.
    let Some(identity) = Identity::read(&*disk)? else {
        return create(disk, options, lock).map(|opened| Directory::Ready(Box::new(opened)));
    };
    if identity.follows {
        let what = format!(
            "{} holds a follower's copy of log {:032x}, which takes no appends and no part in a cluster; open it with `FollowerLog` or `ReadOnlyLog` in a program, or with `chiplog follow` or `chiplog read`",
            disk.path().display(),
            identity.log.get()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    let segments = Arc::new(Segments::new(disk.clone(), options.read_mode, VecDeque::new()));
    match recover(disk.clone(), options, identity, segments.clone()) {
        Ok(opened) => Ok(Directory::Ready(Box::new(RecoveredLog { lock: Some(lock), ..opened }))),
        Err(why) => match options.cluster.clone().filter(|_| why.kind() == ErrorKind::Corrupt) {
            Some(cluster) => {
                let (options, lock) = (options.clone(), Some(lock));
                Ok(Directory::DamagedLog(Box::new(DamagedLog {
                    disk,
                    options,
                    cluster,
                    identity,
                    segments,
                    why,
                    lock,
                })))
            }
            None => Err(why),
        },
    }
}

/// Opens the log of a follower.
///
/// # Errors
/// `NotFound`: there is none. `InvalidArgument`: the directory belongs to a replica, or to a log on its own. `Locked`,
/// `Corrupt`, `Unsupported`, `Io`.
pub(crate) fn open_followed(disk: Arc<dyn Disk>, options: &Options) -> Result<RecoveredLog> {
    if Identity::read(&*disk)?.is_none() {
        return Err(no_log(&*disk));
    }
    let lock = lock(&*disk)?;
    let identity = followers_identity(&*disk)?.ok_or_else(|| no_log(&*disk))?;
    let segments = Arc::new(Segments::new(disk.clone(), options.read_mode, VecDeque::new()));
    let opened = recover(disk.clone(), options, identity, segments).map_err(|error| match error.kind() {
        ErrorKind::Corrupt => {
            let what = format!(
                "{error}; the source of this copy still has this data: remove this copy with `FollowerLog::destroy`, and follow again"
            );
            error.with_message(what)
        }
        _ => error,
    })?;
    Ok(RecoveredLog { lock: Some(lock), ..opened })
}

/// Creates the log of a follower that begins at `state`.
///
/// # Errors
/// `InvalidArgument`: there is a log already. `Corrupt`: the state is malformed. `TooLarge`: it does not fit in a
/// segment. `Locked`, `Full`, `Io`.
pub(crate) fn create_followed(
    disk: Arc<dyn Disk>,
    options: &Options,
    state: &FollowSnapshot,
) -> Result<RecoveredLog> {
    create_copy(disk, options, state, Sequencer::new(Owner::Follower, Membership::default(), options))
}

/// As [`create_followed`], for a log that is made here without its object store, and is opened with it: each named log of a shared group
/// begins where the state says, although that record is in an object.
///
/// # Errors
/// As [`create_followed`].
pub(crate) fn create_branched(
    disk: Arc<dyn Disk>,
    options: &Options,
    state: &FollowSnapshot,
) -> Result<RecoveredLog> {
    let sequencer = Sequencer::new(Owner::Follower, Membership::default(), options);
    create_copy(disk, options, state, sequencer.with_objects())
}

fn create_copy(
    disk: Arc<dyn Disk>,
    options: &Options,
    state: &FollowSnapshot,
    mut sequencer: Sequencer,
) -> Result<RecoveredLog> {
    let lock = lock(&*disk)?;
    if followers_identity(&*disk)?.is_some() {
        let what = format!("{} already holds a follower's log: open it", disk.path().display());
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    remove_unfinished(&*disk)?;
    let identity = Identity::random(&*disk, options.clock.now());
    let identity = identity.map_err(|e| Error::io("make", disk.path(), e))?;
    let identity = Identity { log: state.log(), follows: true, ..identity };
    sequencer
        .begin_at(&state.header, &state.body, options)
        .map_err(|why| Error::new(ErrorKind::Corrupt, format!("the source's state is malformed: {why}")))?;
    sequencer.check_group_objects()?;
    let opening = sequencer.opening();
    check_opening(&opening, options)?;
    let segments = Arc::new(Segments::new(disk.clone(), options.read_mode, VecDeque::new()));
    let allocator =
        Arc::new(Allocator::new(disk.clone(), identity.log, options.segment_bytes, 1, Vec::new()));
    allocator.prepare_first()?;
    let store = Store::create(disk.clone(), segments.clone(), allocator, opening)?;
    keep(&*disk, identity)?;
    let cluster = on_its_own();
    Ok(RecoveredLog { lock: Some(lock), identity, store, sequencer, cluster, segments, is_new: true })
}

/// Removes the log of a follower.
///
/// # Errors
/// As [`open_followed`]. Damaged files are removed as well, but the identity has to be sound.
pub(crate) fn reset_followed(disk: &dyn Disk) -> Result<()> {
    if Identity::read(disk)?.is_none() {
        return Err(no_log(disk));
    }
    let _lock = lock(disk)?;
    if followers_identity(disk)?.is_none() {
        return Err(no_log(disk));
    }
    let sync = || disk.sync_dir().map_err(|e| Error::io("sync", disk.path(), e));
    let is_removed = |n: &&String| file_number(n).is_some() || is_temporary(n) || is_object_file(n);
    for name in list(disk)?.iter().filter(is_removed) {
        remove(disk, name)?;
    }
    // The identity is removed last: until then, this can be repeated.
    sync()?;
    remove(disk, IDENTITY_FILE)?;
    sync()
}

/// The identity in a follower's directory. None: there is no log.
fn followers_identity(disk: &dyn Disk) -> Result<Option<Identity>> {
    let identity = Identity::read(disk)?;
    if identity.is_some_and(|i| !i.follows) {
        let what = format!(
            "{} holds a log on its own, or a replica of a cluster; use another directory for the follower",
            disk.path().display()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    Ok(identity)
}

/// Fails if a segment has no room for this opening.
fn check_opening(opening: &NewBlock, options: &Options) -> Result<()> {
    let needed = opening.header.stride() + PROOF_BYTES_MAX;
    let room = room_of(options.segment_bytes as usize);
    if needed <= room {
        return Ok(());
    }
    let what = format!(
        "the source's state takes {needed} bytes of a segment, which has room for {room}: raise segment_bytes"
    );
    Err(Error::new(ErrorKind::TooLarge, what))
}

fn lock(disk: &dyn Disk) -> Result<Box<dyn Lock>> {
    let path = disk.path().join(IDENTITY_FILE);
    disk.lock(IDENTITY_FILE).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => {
            let what = format!(
                "{} is already open for writing, in this process or another one: close it there, or read it through a ReadOnlyLog meanwhile",
                disk.path().display()
            );
            Error::new(ErrorKind::Locked, what)
        }
        _ => Error::io("lock", &path, e),
    })
}

/// The cluster options of a log on its own, which needs no transport.
fn on_its_own() -> ClusterOptions {
    ClusterOptions::new(ALONE, Bootstrap::Init, Arc::new(Nobody))
}

/// The transport of a log on its own: it has no peers.
#[derive(Debug)]
struct Nobody;

impl Transport for Nobody {
    fn attach(&self, _: NodeId, _: Inbox) {}
    fn detach(&self, _: NodeId) {}
    fn send(&self, _: Envelope) {}
}

fn create(disk: Arc<dyn Disk>, options: &Options, lock: Box<dyn Lock>) -> Result<RecoveredLog> {
    remove_unfinished(&*disk)?;
    let mut identity =
        Identity::random(&*disk, options.clock.now()).map_err(|e| Error::io("make", disk.path(), e))?;
    let cluster = options.cluster.clone().unwrap_or_else(on_its_own);
    let membership = match cluster.bootstrap {
        Bootstrap::Init => Membership::of([Member::voter(cluster.node, DirectoryId(0), "")]),
        Bootstrap::Join(log) => {
            identity.log = log;
            Membership::default()
        }
        Bootstrap::Existing => {
            let what = format!(
                "there is no replica at {}: if its disk was emptied, remove node {} from the cluster and add a new one",
                disk.path().display(),
                cluster.node
            );
            return Err(Error::new(ErrorKind::NotFound, what));
        }
    };
    let segments = Arc::new(Segments::new(disk.clone(), options.read_mode, VecDeque::new()));
    let allocator =
        Arc::new(Allocator::new(disk.clone(), identity.log, options.segment_bytes, 1, Vec::new()));
    allocator.prepare_first()?;
    let sequencer = Sequencer::new(Owner::Node(cluster.node), membership, options);
    let opening = sequencer.opening();
    let store = Store::create(disk.clone(), segments.clone(), allocator, opening)?;
    keep(&*disk, identity)?;
    Ok(RecoveredLog { lock: Some(lock), identity, store, sequencer, cluster, segments, is_new: true })
}

/// Removes the files of a log whose creation a crash interrupted. Refuses if a file may hold more than an opening
/// block: then the identity was lost.
fn remove_unfinished(disk: &dyn Disk) -> Result<()> {
    for name in list(disk)? {
        let Some(number) = file_number(&name) else {
            if is_temporary(&name) {
                remove(disk, &name)?;
            }
            continue;
        };
        if number > 1 + AHEAD as u64 || holds_more_than_opening(disk, number)? {
            return Err(identity_gone(disk, &name));
        }
        remove(disk, &name)?;
    }
    Ok(())
}

fn identity_gone(disk: &dyn Disk, name: &str) -> Error {
    let what =
        format!("the log's identity is missing, but {name} holds data; restore {IDENTITY_FILE} from a copy");
    Error::corrupt(&disk.path().join(IDENTITY_FILE), 0, what)
}

/// The disk of the log in `dir`. Makes the directory if `create` is true.
///
/// # Errors
/// `NotFound`, `Io`. `InvalidArgument`: the directory holds many named logs, or its name is empty.
pub(crate) fn disk_at(dir: &Path, create: bool) -> Result<Arc<dyn Disk>> {
    check_name(dir)?;
    check_not_named(dir)?;
    open_dir(dir, create)
}

/// Opens or makes the directory of many named logs.
///
/// # Errors
/// `NotFound`, `Io`. `InvalidArgument`: the directory holds a log on its own, or its name is empty.
pub(crate) fn open_named_dir(dir: &Path, create: bool) -> Result<()> {
    check_name(dir)?;
    let disk = open_dir(dir, create)?;
    if Identity::read(&*disk)?.is_some() {
        let what = format!("{} holds one log on its own; named logs need another directory", dir.display());
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    Ok(())
}

/// The file in a directory of named logs that lists further directories with groups of theirs.
pub(crate) const DIRECTORIES_FILE: &str = "chiplog.directories";
/// The file in such a further directory that says whose it is.
pub(crate) const MARKER_FILE: &str = "chiplog.groups";

/// The directory of the catalogue's log, in a directory of named logs.
pub(crate) fn system_dir(dir: &Path) -> PathBuf {
    dir.join("system")
}

/// The directory of a group, in a directory of named logs.
pub(crate) fn group_dir(dir: &Path, group: u32) -> PathBuf {
    dir.join(format!("group-{group}"))
}

/// Whether a directory holds a log of its own, as far as it can be read.
pub(crate) fn holds_log(dir: &Path) -> bool {
    let disk = RealDisk::open(dir, false).ok();
    disk.is_some_and(|disk| Identity::read(&disk).is_ok_and(|identity| identity.is_some()))
}

/// Fails if `dir` holds many named logs, or groups of them.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn check_not_named(dir: &Path) -> Result<()> {
    let has = |file: &str| dir.join(file).is_file();
    let has_groups = has(DIRECTORIES_FILE) || group_dir(dir, 1).is_dir();
    let is_named = has_groups && holds_log(&system_dir(dir));
    if holds_log(dir) || !(is_named || has(MARKER_FILE)) {
        return Ok(());
    }
    let what = format!(
        "{} holds many named logs: open it with `Logs` in a program; `chiplog verify` and `chiplog dump` read its \
         folders system, group-1 and so on",
        dir.display()
    );
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

fn open_dir(dir: &Path, create: bool) -> Result<Arc<dyn Disk>> {
    let above = missing_above(dir);
    match RealDisk::open(dir, create) {
        Ok(disk) => {
            if let Some(above) = above {
                report_made(dir, above);
            }
            Ok(Arc::new(disk))
        }
        // `dir` exists but is no directory, or it could not be made.
        Err(e) if create && !dir.exists() => Err(Error::io("make directory", dir, e)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let what = format!("there is no log at {}: the directory does not exist", dir.display());
            Err(Error::new(ErrorKind::NotFound, what))
        }
        Err(e) => Err(cannot_open(dir, e)),
    }
}

/// Logs that `dir` was made together with `above`, the highest directory above it that was missing: the path may be
/// mistyped. The folders inside a log's own directory are not logged.
fn report_made(dir: &Path, above: &Path) {
    if above.parent().is_none_or(|in_it| !in_it.join(IDENTITY_FILE).exists()) {
        let (dir, above) = (dir.display(), above.display());
        tracing::info!("made the directory {dir}; {above} above it was missing, too");
    }
}

/// Fails if `dir` is empty.
///
/// # Errors
/// `InvalidArgument`: the name of the log's directory is empty.
pub(crate) fn check_name(dir: &Path) -> Result<()> {
    if !dir.as_os_str().is_empty() {
        return Ok(());
    }
    let what = "the name of the log's directory is empty: use \".\" for the current directory";
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

/// The reason why a log's directory cannot be opened, although something of that name exists.
pub(crate) fn cannot_open(dir: &Path, e: io::Error) -> Error {
    if dir.is_file() {
        return Error::new(
            ErrorKind::InvalidArgument,
            format!("{} is a file, not a directory", dir.display()),
        );
    }
    Error::io("open directory", dir, e)
}

/// The reason why a directory without an identity does not open: there is no log, or its identity was lost.
pub(crate) fn no_log(disk: &dyn Disk) -> Error {
    let holds_data = |name: &String| {
        file_number(name).is_some_and(|number| {
            number > 1 + AHEAD as u64 || holds_more_than_opening(disk, number).unwrap_or(true)
        })
    };
    let names = match list(disk) {
        Ok(names) => names,
        Err(error) => return error,
    };
    match names.iter().find(|name| holds_data(name)) {
        Some(name) => identity_gone(disk, name),
        None => Error::new(ErrorKind::NotFound, format!("there is no log at {}", disk.path().display())),
    }
}

/// Whether any block follows the opening block of a segment file. Counts as yes if it is not known.
fn holds_more_than_opening(disk: &dyn Disk, number: u64) -> Result<bool> {
    let file = match SegmentFile::open(disk, number) {
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => return Ok(true),
        file => file?,
    };
    let mut scanner = file.scanner();
    let after = match scanner.block(SEGMENT_HEADER_BYTES)? {
        Ok((opening, _)) if opening.kind == Kind::Opening => SEGMENT_HEADER_BYTES + opening.stride(),
        // The opening block itself may be incomplete.
        _ => SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES,
    };
    Ok(scanner.seek(after, scanner.limit())?.is_some())
}

fn recover(
    disk: Arc<dyn Disk>,
    options: &Options,
    identity: Identity,
    segments: Arc<Segments>,
) -> Result<RecoveredLog> {
    for name in list(&*disk)?.iter().filter(|n| is_temporary(n)) {
        remove(&*disk, name)?;
    }
    let cluster = options.cluster.clone().unwrap_or_else(on_its_own);
    let me = if identity.follows { Owner::Follower } else { Owner::Node(cluster.node) };
    let unlearnt = || Sequencer::new(me, Membership::default(), options);
    // If the list is damaged, the scrub of objects says so, and finds out which they are.
    let suspects = suspects::read(&*disk, identity.log).ok();
    let lists = !identity.follows && options.vault.is_some() && options.object_scrub.is_some();
    let lists = lists.then_some(identity.log);
    let mut opened = Opened { replayed: Replayed { sequencer: unlearnt(), options }, suspects, lists };
    let mut survey = survey(&*disk, identity, &mut opened)?;
    let mut sequencer = opened.replayed.sequencer;
    if !identity.follows {
        check_place(&*disk, identity, options, &cluster, sequencer.membership_at_end())?;
    }
    let begun_at = survey.segments.back().filter(|_| survey.segments.len() == 1).map(|s| s.base.raft);
    if sequencer.end().raft == EntryIndex(0) || (identity.follows && begun_at == Some(sequencer.end().raft)) {
        // The process that created the log may have been killed, or have failed, before the identity was durable. No
        // append was acknowledged before this opening, so there is no proof that the identity is durable.
        keep(&*disk, identity)?;
    }
    let (file, unproven) = repair(&*disk, &mut survey)?;
    let Survey { segments: found, unsealed, leftovers, put_aside, .. } = survey;
    let Some(last) = found.back().cloned() else {
        return Err(Error::corrupt(disk.path(), 0, "the log has no segment"));
    };
    let (mut spare, mut gone) = (Vec::new(), Vec::new());
    for leftover in leftovers {
        // Files with the log's own past may still be mapped by readers of an earlier handle in this process: do not
        // reuse them.
        let never_begun = file_number(&leftover.name).is_some_and(|n| n > last.number);
        let fits = never_begun && leftover.bytes == u64::from(options.segment_bytes);
        if fits && spare.len() < AHEAD { spare.push(leftover.name) } else { gone.push(leftover.name) }
    }
    let (last_base, last_number) = (last.base.raft, last.number);
    let begins = found.front().map_or(Index(0), |oldest| oldest.base.next);
    let disk_path = disk.path().to_path_buf();
    segments.replace(found);
    let allocator = Allocator::new(disk.clone(), identity.log, options.segment_bytes, last.number + 1, spare);
    for segment in unsealed {
        allocator.seal(segment);
    }
    let (committed, end) = (sequencer.known_committed(), sequencer.end());
    let resume = Resume { segment: last, file, unproven, committed };
    let mut store = Store::new(disk.clone(), segments.clone(), Arc::new(allocator), resume)?;
    store.put_aside = put_aside;
    let lets_go = gone.iter().any(|name| file_number(name).is_some_and(|number| number < last_number));
    prove_where_files_begin(&mut store, &mut sequencer, lets_go)?;
    for name in gone {
        remove(&*disk, &name)?;
    }
    if committed < last_base {
        // Uncommitted entries begin in an earlier segment: replay them from there to learn their effects.
        let state = sequencer.hard_state();
        let mut replayed = Replayed { sequencer: unlearnt(), options };
        if !store.archive().replay(committed, end.raft, &mut replayed)? {
            let what = format!("entry {committed}, the last one known to be committed, is not in the files");
            return Err(Error::corrupt(&disk_path, 0, what));
        }
        sequencer = replayed.sequencer;
        sequencer.keep_hard_state(state, committed);
        // A replay need not have met the block that says so.
        sequencer.keep_from(begins);
    }
    for name in list(&*disk)?.iter().filter(|n| is_aside(n)) {
        remove(&*disk, name)?;
    }
    Ok(RecoveredLog { lock: None, identity, store, sequencer, cluster, segments, is_new: false })
}

/// If a block of the last segment says where the files begin, proves it before files go because of it. The process can have ended between
/// the two blocks that say so, and damage can have taken one of them.
fn prove_where_files_begin(store: &mut Store, sequencer: &mut Sequencer, lets_go: bool) -> Result<()> {
    if !sequencer.says_kept() || !(lets_go || sequencer.says_kept_once()) || planted!(179) {
        return Ok(());
    }
    let filler = store.filler();
    let mut blocks = None;
    if store.has_space_for_kept_state() {
        blocks = sequencer.repeat_kept(filler);
    }
    if blocks.is_none() && store.is_unproven() && store.has_space_for(store.proof()) {
        // Entries behind the block are not committed: a block there cannot say it.
        blocks = Some(store.proof().map(|body| sequencer.marker(body)).collect());
    }
    blocks.map_or(Ok(()), |blocks| store.write_through(blocks))
}

/// Checks that this directory is the one that the options describe.
fn check_place(
    disk: &dyn Disk,
    identity: Identity,
    options: &Options,
    cluster: &ClusterOptions,
    membership: &Membership,
) -> Result<()> {
    let refuse = |what: String| {
        Err(Error::new(ErrorKind::InvalidArgument, format!("{}: {what}", disk.path().display())))
    };
    if let Bootstrap::Join(log) = cluster.bootstrap
        && log != identity.log
    {
        return refuse(format!("the directory holds log {}, not log {log}", identity.log));
    }
    if options.cluster.is_none() && *membership != Membership::alone() {
        return refuse(
            "the directory is a replica of a cluster: open it with cluster options in a program, or with `chiplog serve`".to_owned(),
        );
    }
    let owner = membership.members().find(|m| m.directory == identity.directory);
    if identity.joins {
        // Its members are those of the log of which it was a copy. It is not one of them under another directory.
        let is_other = |m: &Member| m.directory != identity.directory;
        return match (&options.cluster, owner) {
            (None, _) => {
                refuse("the directory is to join a cluster: open it with `chiplog serve`".to_owned())
            }
            (Some(_), _) if cluster.bootstrap == Bootstrap::Init => refuse(
                "the directory is to join a cluster: leave out --init, and have its leader add this server"
                    .to_owned(),
            ),
            (_, Some(owner)) if owner.node != cluster.node => {
                refuse(format!("the directory belongs to node {}, not to node {}", owner.node, cluster.node))
            }
            _ if membership.get(cluster.node).is_some_and(is_other) => refuse(format!(
                "the directory was made to join a cluster, of which node {} is a member already: give the server a number that was never used",
                cluster.node
            )),
            _ => Ok(()),
        };
    }
    if *membership == Membership::alone() && cluster.node != ALONE {
        return refuse(format!(
            "the log was on its own, so it is node {ALONE}, not node {}: open it as node {ALONE}",
            cluster.node
        ));
    }
    if *membership == Membership::alone() && options.cluster.is_some() {
        let dir = disk.path().display();
        tracing::info!(
            %dir,
            "the log was on its own: it becomes the first replica of a cluster now, for good, and opens with cluster \
             options only"
        );
    }
    match owner {
        Some(owner) if owner.node != cluster.node => {
            refuse(format!("the directory belongs to node {}, not to node {}", owner.node, cluster.node))
        }
        _ => Ok(()),
    }
}

/// Makes the identity durable, and the directories above it.
fn keep(disk: &dyn Disk, identity: Identity) -> Result<()> {
    identity.write(disk)?;
    disk.sync_ancestors().map_err(|e| Error::io("sync the directories above", disk.path(), e))
}

fn list(disk: &dyn Disk) -> Result<Vec<String>> {
    disk.list().map_err(|e| Error::io("list", disk.path(), e))
}

fn remove(disk: &dyn Disk, name: &str) -> Result<()> {
    disk.remove(name).map_err(|e| Error::io("remove", &disk.path().join(name), e))
}

/// Whether this is a file that the helper thread was preparing.
fn is_temporary(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|n| file_number(&file_name_of(n)).is_some())
}

/// Whether files of this name are a log's own, finished or not. There can be some before the log has an identity.
#[cfg(feature = "internal")]
pub fn is_own_file(name: &str) -> bool {
    name.starts_with("chiplog.")
        || is_segment_file(name)
        || is_temporary(name)
        || is_aside(name)
        || crate::store::read::sorted_copies::is_sorted_name(name)
        || is_object_file(name)
}

/// Whether this is the name of a finished segment file.
#[cfg(feature = "internal")]
pub fn is_segment_file(name: &str) -> bool {
    file_number(name).is_some()
}

fn file_name_of(digits: &str) -> String {
    debug_assert_eq!(file_name(0).len(), 24);
    format!("{digits}.seg")
}
