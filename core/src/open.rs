//! Opening: from a directory to a store and the state its blocks lead to. Makes a new log where there is none.
//!
//! The order in which a new log is made, each step durable before the next:
//!
//! 1. the lock file, empty; 2. the first segment's file; 3. its opening block; 4. the identity.
//!
//! A crash before 4 leaves no log: what is there then is removed by the next opening.

use crate::batch::Malformed;
use crate::config::{Options, SEGMENT_BYTES_MIN};
use crate::disk::{Disk, Lock};
use crate::error::{Error, ErrorKind, Result};
use crate::sequence::Sequencer;
use crate::store::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::identity::{IDENTITY_FILE, Identity};
use crate::store::layout::{HARD_STATE_BYTES, SEGMENT_HEADER_BYTES};
use crate::store::prepared::{AHEAD, Preparer};
use crate::store::recovery::{Survey, repair, survey};
use crate::store::scan::{Found, Scanner};
use crate::store::segment::{Base, Segments, file_name, file_number};
use crate::store::walk::Learn;
use crate::store::{Resume, Store};
use crate::types::{Index, RaftIndex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// A log's files, open, and what they say.
pub(crate) struct Opened {
    pub(crate) lock: Box<dyn Lock>,
    pub(crate) identity: Identity,
    pub(crate) store: Store,
    pub(crate) sequencer: Sequencer,
    pub(crate) segments: Arc<Segments>,
}

/// A sequencer that learns, with the options it needs for it.
pub(crate) struct Replayed<'a> {
    pub(crate) sequencer: Sequencer,
    pub(crate) options: &'a Options,
}

impl Learn for Replayed<'_> {
    fn learn(&mut self, header: &BlockHeader, body: &[u8]) -> Result<Base, Malformed> {
        self.sequencer.replay(header, body, self.options)
    }

    fn first(&self) -> Index {
        self.sequencer.first()
    }

    fn commit(&self) -> RaftIndex {
        self.sequencer.end().raft
    }

    fn anew(&self) -> Box<dyn Learn + '_> {
        Box::new(Replayed { sequencer: Sequencer::new(self.options), options: self.options })
    }
}

/// Opens or makes the log on `disk`.
pub(crate) fn open(disk: Arc<dyn Disk>, options: &Options) -> Result<Opened> {
    let existing = Identity::read(&*disk);
    if let Ok(None) = existing
        && !options.create
    {
        return Err(Error::new(ErrorKind::NotFound, format!("there is no log at {}", disk.path().display())));
    }
    let lock = lock(&*disk)?;
    // Again, under the lock: another process may have made it meanwhile.
    match Identity::read(&*disk)? {
        Some(identity) => recover(disk, options, lock, identity),
        None => create(disk, options, lock),
    }
}

fn lock(disk: &dyn Disk) -> Result<Box<dyn Lock>> {
    let path = disk.path().join(IDENTITY_FILE);
    disk.lock(IDENTITY_FILE).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => {
            let what = format!("{} is open already, in this process or another one", disk.path().display());
            Error::new(ErrorKind::Locked, what)
        }
        _ => Error::io("lock", &path, e),
    })
}

fn create(disk: Arc<dyn Disk>, options: &Options, lock: Box<dyn Lock>) -> Result<Opened> {
    remove_unfinished(&*disk)?;
    let identity =
        Identity::random(&*disk, options.clock.now()).map_err(|e| Error::io("make", disk.path(), e))?;
    let segments = Arc::new(Segments::new(disk.clone(), options.read_mode, VecDeque::new()));
    let preparer = Arc::new(Preparer::new(disk.clone(), identity.log, options.segment_bytes, 1, Vec::new()));
    preparer.prepare_first()?;
    let mut sequencer = Sequencer::new(options);
    let opening = sequencer.opening(options);
    let store = Store::create(disk.clone(), segments.clone(), preparer, opening)?;
    keep(&*disk, identity)?;
    Ok(Opened { lock, identity, store, sequencer, segments })
}

/// Removes what a crash left of a log that was being made. Refuses when there is more than that: then the
/// identity was lost.
fn remove_unfinished(disk: &dyn Disk) -> Result<()> {
    for name in list(disk)? {
        let Some(number) = file_number(&name) else {
            if is_temporary(&name) {
                remove(disk, &name)?;
            }
            continue;
        };
        if number > 1 + AHEAD as u64 || holds_more_than_opening(disk, &name)? {
            let what = format!(
                "the log's identity is gone and {name} holds data; restore {IDENTITY_FILE} from a copy"
            );
            return Err(Error::corrupt(&disk.path().join(IDENTITY_FILE), 0, what));
        }
        remove(disk, &name)?;
    }
    Ok(())
}

/// Whether any block follows the opening block of a segment file. Not knowing counts as yes.
fn holds_more_than_opening(disk: &dyn Disk, name: &str) -> Result<bool> {
    use crate::store::layout::SegmentHeader;
    let path = disk.path().join(name);
    let io = |e| Error::io("read", &path, e);
    let file = disk.open(name, false).map_err(io)?;
    let mut head = vec![0; SEGMENT_HEADER_BYTES];
    let length = file.len().map_err(io)?;
    if length < u64::from(SEGMENT_BYTES_MIN) {
        return Ok(true);
    }
    file.read_at(0, &mut head).map_err(io)?;
    let Ok(header) = SegmentHeader::parse(&head) else { return Ok(true) };
    if u64::from(header.bytes) != length {
        return Ok(true);
    }
    let mut scanner = Scanner::new(file, path.clone(), header.id, header.bytes as usize);
    let after = match scanner.block(SEGMENT_HEADER_BYTES)? {
        Found::Block(opening, _) if opening.kind == Kind::Opening => SEGMENT_HEADER_BYTES + opening.stride(),
        // The opening block itself may be half there.
        _ => SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES,
    };
    Ok(scanner.later(after)?.end > after)
}

fn recover(
    disk: Arc<dyn Disk>,
    options: &Options,
    lock: Box<dyn Lock>,
    identity: Identity,
) -> Result<Opened> {
    for name in list(&*disk)?.iter().filter(|n| is_temporary(n)) {
        remove(&*disk, name)?;
    }
    let mut replayed = Replayed { sequencer: Sequencer::new(options), options };
    let mut survey = survey(&*disk, identity, &mut replayed)?;
    let mut sequencer = replayed.sequencer;
    if sequencer.end().raft == RaftIndex(0) {
        // Whoever made the log may have been killed, or have failed, before the identity was durable. Nothing
        // was acknowledged before this opening, so nothing yet proves that it is.
        keep(&*disk, identity)?;
    }
    let (file, unproven) = repair(&*disk, &mut survey)?;
    let Survey { segments: list, unsealed, leftovers, .. } = survey;
    let Some(last) = list.back().cloned() else {
        return Err(Error::corrupt(disk.path(), 0, "the log has no segment"));
    };
    let mut spare = Vec::new();
    for leftover in leftovers {
        // Of the log's own past, readers of an earlier handle of this process may still have mappings.
        let never_begun = file_number(&leftover.name).is_some_and(|n| n > last.number);
        let fits = never_begun && leftover.bytes == u64::from(options.segment_bytes);
        if fits && spare.len() < AHEAD { spare.push(leftover.name) } else { remove(&*disk, &leftover.name)? }
    }
    let segments = Arc::new(Segments::new(disk.clone(), options.read_mode, list));
    let preparer = Preparer::new(disk.clone(), identity.log, options.segment_bytes, last.number + 1, spare);
    for segment in unsealed {
        preparer.seal(segment);
    }
    // With one node, durable is committed.
    let resume = Resume { segment: last, file, unproven, committed: sequencer.end().raft };
    let mut store = Store::new(disk, segments.clone(), Arc::new(preparer), resume)?;
    let term = sequencer.begin_term(options);
    // Without room here the next entry begins a new segment, whose opening block says it too.
    if store.fits(HARD_STATE_BYTES) {
        store.push(term);
        store.write()?;
        store.sync()?;
        store.commit(sequencer.end().raft);
    }
    Ok(Opened { lock, identity, store, sequencer, segments })
}

/// Makes the identity durable, and the way to it.
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

/// A file that the helper thread was making.
fn is_temporary(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|n| file_number(&file_name_of(n)).is_some())
}

fn file_name_of(digits: &str) -> String {
    debug_assert_eq!(file_name(0).len(), 24);
    format!("{digits}.seg")
}
