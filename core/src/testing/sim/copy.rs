//! Copy: a follower of a simulated cluster. It runs the shipped [`Applier`] over a simulated disk, with the
//! decisions of its thread ([`State`]) and a power switch.
//!
//! Must not know: the network, who feeds it, what it should have.

use super::readers::Readers;
use super::setup::{SEGMENT_BYTES, SetClock};
use super::store_faults::StoreFaults;
use super::threads::Records;
use super::vault::SimVault;
use crate::api::follower::{Next, State};
use crate::disk::sim::SimDisk;
use crate::error::Result;
use crate::follower::applier::Applier;
use crate::follower::message::{FollowFrom, FollowMessage};
use crate::follower::source::FollowSource;
use crate::options::Options;
use crate::read::view::LogView;
use crate::replica::node::Published;
use crate::replica::node::shared::Shared;
use crate::replica::open::{RecoveredLog, create_followed, open_followed};
use crate::replica::state::sequencer::Owner;
use crate::replica::state::snapshot::FollowSnapshot;
use crate::replica::writer::SyncOnce;
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, Index, LogId, LogNumber};
use crate::vault::Vault;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The next work of a follower's thread.
pub(super) enum Chore {
    /// A sync has begun and takes some time.
    Sync,
    /// Some work was done; there may be more.
    Done,
    Wait(Option<Duration>),
}

/// The process of a follower.
pub(super) struct Copy {
    state: State,
    readers: Readers,
    options: Options,
    published: Arc<Published>,
    log: LogId,
    job: Option<Arc<SyncOnce>>,
    /// The origin of virtual time.
    epoch: Instant,
}

/// The parameters for opening it.
#[derive(Clone, Debug)]
pub(super) struct CopySetup {
    pub(super) clock: Arc<SetClock>,
    pub(super) retention_bytes: Option<u64>,
    /// The log's object store, if it reads from there.
    pub(super) vault: Option<Arc<SimVault>>,
}

impl CopySetup {
    fn options(&self) -> Options {
        Options {
            clock: self.clock.clone(),
            retention_bytes: self.retention_bytes,
            vault: self.vault.clone().map(|vault| vault as Arc<dyn Vault>),
            local_bytes: Some(1), // all that is stored goes
            cache_bytes: 8 << 20,
            ..Options::with_segment_bytes(SEGMENT_BYTES)
        }
    }
}

impl Copy {
    /// Opens the log on the disk.
    ///
    /// # Errors
    /// Those of `FollowerLog::open`.
    pub(super) fn open(disk: &SimDisk, setup: &CopySetup, now: Moment) -> Result<Self> {
        let options = setup.options();
        let opened = open_followed(Arc::new(disk.clone()), &options)?;
        Self::start(opened, options, StoreFaults::new(setup.vault.clone(), disk), now)
    }

    /// Makes a log that begins at `state`.
    ///
    /// # Errors
    /// Those of `FollowerLog::create`.
    pub(super) fn create(
        disk: &SimDisk,
        setup: &CopySetup,
        state: &FollowSnapshot,
        now: Moment,
    ) -> Result<Self> {
        let options = setup.options();
        let opened = create_followed(Arc::new(disk.clone()), &options, state)?;
        Self::start(opened, options, StoreFaults::new(setup.vault.clone(), disk), now)
    }

    fn start(opened: RecoveredLog, options: Options, faults: StoreFaults, now: Moment) -> Result<Self> {
        opened.store.allocator.go_unaided();
        let log = opened.identity.log;
        let shared = Shared::of(Path::new("copy"), options.clone(), &opened);
        let applier = Applier::new(opened, &shared);
        let published = shared.published.clone();
        let readers = Readers::new(shared.view, faults);
        let epoch = Instant::now();
        let state = State::new(applier, epoch + Duration::from_nanos(now.0));
        Ok(Self { state, readers, options, published, log, job: None, epoch })
    }

    fn instant(&self, now: Moment) -> Instant {
        self.epoch + Duration::from_nanos(now.0)
    }

    pub(super) fn resume_point(&self) -> FollowFrom {
        self.state.applier.resume_point()
    }

    /// The last entry that it has.
    pub(super) fn committed(&self) -> EntryIndex {
        self.group().positions.entry()
    }

    /// The last record that it has, if it is a copy of one log.
    pub(super) fn last_record(&self) -> Index {
        self.group().positions.committed()
    }

    /// Takes an item of a feed. An outer error ends the process, an inner one refuses the item. True: the log jumped.
    ///
    /// # Errors
    /// The error that ends the process.
    pub(super) fn apply(&mut self, fed: FollowMessage, now: Moment) -> Result<Result<bool>> {
        self.state.look_at_clock(self.instant(now));
        let taken = match fed {
            FollowMessage::State(state) => {
                self.state.applier.install_snapshot(&state)?.map(|jumped| jumped.is_some())
            }
            FollowMessage::Entries(entries) => self.state.applier.apply(entries)?.map(|()| false),
        };
        self.state.has_written(self.instant(now));
        self.state.applier.help();
        self.group().wake();
        Ok(taken)
    }

    /// Does the next work of its thread.
    ///
    /// # Errors
    /// The error that ends the process.
    pub(super) fn chore(&mut self, now: Moment) -> Result<Chore> {
        if self.job.is_some() {
            return Ok(Chore::Wait(None));
        }
        let now = self.instant(now);
        match self.state.next(now) {
            Next::Sync => {
                self.job = self.state.applier.begin_sync();
                if self.job.is_some() {
                    return Ok(Chore::Sync);
                }
                self.state.applier.sync()?;
            }
            Next::Prove => self.state.prove(now)?,
            Next::Retain => self.state.retain(now)?,
            Next::Wait(time) => return Ok(Chore::Wait(time)),
            Next::End => return Ok(Chore::Wait(None)),
        }
        self.state.applier.help();
        Ok(Chore::Done)
    }

    /// The running sync ends.
    ///
    /// # Errors
    /// The error that ends the process.
    pub(super) fn synced(&mut self, now: Moment) -> Result<()> {
        let Some(job) = self.job.take() else { return Ok(()) };
        job.run()?;
        self.state.has_synced(&job, self.instant(now));
        Ok(())
    }

    /// A feed of this copy, for another one.
    ///
    /// # Errors
    /// Those of `Log::follow`.
    pub(super) fn follow(&self, from: FollowFrom) -> Result<FollowSource> {
        if self.published.of_one_log.load(Ordering::Relaxed) {
            let (view, published) = (self.group().clone(), self.published.clone());
            return FollowSource::of_one_log(view, published, Owner::Follower, self.log, from);
        }
        FollowSource::new(self.group().clone(), Owner::Follower, self.log, self.options.clone(), from)
    }

    /// The records that became readable since the last call.
    ///
    /// # Errors
    /// Those of `Reader::next_record`.
    pub(super) fn fresh(&mut self) -> Result<Records> {
        self.readers.fresh(self.options.vault.is_none())
    }

    /// The excuses of readers since the last call.
    pub(super) fn take_excuses(&mut self) -> BTreeMap<&'static str, u64> {
        self.readers.faults().take_excuses()
    }

    /// Everything that can be read.
    ///
    /// # Errors
    /// Those of `Reader::next_record`.
    pub(super) fn all(&mut self) -> Result<Records> {
        self.readers.all()
    }

    /// Whether it reads objects, and the log has some.
    pub(super) fn reads_objects(&self) -> bool {
        self.options.vault.is_some() && !self.group().segments.objects().is_empty()
    }

    /// The logs that can be read, each with its first record.
    ///
    /// # Errors
    /// None that a copy can have.
    pub(super) fn firsts(&self) -> Result<Vec<(LogNumber, Index)>> {
        let first = |log| Ok((log, self.readers.of_log(log)?.positions.first()));
        self.readers.logs().into_iter().map(first).collect()
    }

    fn group(&self) -> &LogView {
        self.readers.group()
    }
}
