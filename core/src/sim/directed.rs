//! Directed scenarios: short plays for mistakes that seeds meet too rarely. Each holds for the log as it is, and fails
//! when the bug is planted that [`super::bugs`] names beside it.
//!
//! Those with a cluster play in a [`World`], so its oracle judges them after every event as well. Those with one replica
//! hand it the messages of a leader that is not there.

use super::fault::Fault;
use super::history::{LARGE, record_of};
use super::host::Maimed;
use super::machine::{Machine, Request, SetClock, Setup};
use super::oracle::Check;
use super::plan::Plan;
use super::story::Story;
use super::threads::Then;
use super::world::{Asker, Task, World};
use crate::batch::BatchBuilder;
use crate::cluster::{Bootstrap, Role};
#[cfg(test)]
use crate::disk::Disk as _;
use crate::disk::sim::{DiskState, SimDisk};
use crate::error::ErrorKind;
use crate::fetch::{Fetch, parse_blocks};
use crate::membership::{Change, Member, Membership};
use crate::moment::Moment;
use crate::raft_codec::{self, HeadKind};
use crate::replica::snapshot_of;
#[cfg(test)]
use crate::store::segment::{file_name, file_number};
use crate::transport::{Envelope, Transport as _};
use crate::types::{DirectoryId, Index, LogId, NodeId, RaftIndex, Term};
use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use std::sync::Arc;
use std::time::Duration;

/// A scenario: its name, and how it is played.
pub(super) type Scenario = (&'static str, fn() -> Check);

/// All of them.
pub(super) const SCENARIOS: &[Scenario] = &[
    ("set_back_disk_stays_out", set_back_disk_stays_out),
    ("set_back_disk_of_a_leader_stays_out", set_back_disk_of_a_leader_stays_out),
    ("leader_waits_until_its_removal_is_known", leader_waits_until_its_removal_is_known),
    ("removed_leader_tells_what_is_committed", removed_leader_tells_what_is_committed),
    ("last_voter_remembers_that_it_is_alone", last_voter_remembers_that_it_is_alone),
    ("second_change_comes_with_the_commit_of_the_first", second_change_comes_with_the_commit_of_the_first),
    ("sole_voter_speaks_after_its_term_is_durable", sole_voter_speaks_after_its_term_is_durable),
    ("barrier_is_asked_again_after_a_jump", barrier_is_asked_again_after_a_jump),
    ("body_of_another_term_is_not_sent", body_of_another_term_is_not_sent),
    ("another_directory_is_not_heard", another_directory_is_not_heard),
    ("committed_entries_alone_are_lent_as_committed", committed_entries_alone_are_lent_as_committed),
    ("full_cluster_takes_a_discard", full_cluster_takes_a_discard),
    ("replica_without_room_is_silent_and_goes_on", replica_without_room_is_silent_and_goes_on),
    ("follower_on_a_slow_link_gets_nothing_twice", follower_on_a_slow_link_gets_nothing_twice),
];

const ELECTION_TIMEOUT: Duration = Duration::from_millis(500);
/// Longer than anything takes here.
const LONG: Duration = Duration::from_secs(15);

// ---- clusters ----

/// A cluster without clients and without a nemesis.
struct Stage {
    world: World,
    records: u64,
}

impl Stage {
    fn new(voters: u64, learners: u64) -> Check<Self> {
        let plan = Plan {
            voters,
            learners,
            plain_clients: 0,
            session_clients: 0,
            heartbeat: ELECTION_TIMEOUT / 10,
            election_timeout: ELECTION_TIMEOUT,
            delay: Duration::from_millis(1),
            sync_time: Duration::from_micros(200),
            ..Plan::calm(1)
        };
        let mut world = World::new(plan, Story::new(None));
        world.build()?;
        let mut stage = Self { world, records: 0 };
        stage.until("all are settled", |w| w.is_settled().is_some())?;
        Ok(stage)
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut World) -> bool) -> Check {
        let limit = self.world.now().plus(LONG);
        while !holds(&mut self.world) {
            if self.world.now() > limit || !self.world.step()? {
                return Err(format!("it does not happen that {what}: {}", self.world.ails()));
            }
        }
        Ok(())
    }

    fn pass(&mut self, time: Duration) -> Check {
        let end = self.world.now().plus(time);
        while self.world.now() < end && self.world.step()? {}
        Ok(())
    }

    fn leader(&self) -> Check<NodeId> {
        self.world.leader().ok_or_else(|| "nobody leads".to_owned())
    }

    /// The first other voter.
    fn other(&mut self, than: &[NodeId]) -> Check<NodeId> {
        let voters = self.world.voters();
        voters.into_iter().find(|n| !than.contains(n)).ok_or_else(|| "there is no other voter".to_owned())
    }

    /// Appends at the leader, and waits until that is committed.
    fn append(&mut self) -> Check {
        let leader = self.leader()?;
        self.records += 1;
        let mut builder = BatchBuilder::new();
        let built = builder.push(&record_of(self.records)).and_then(BatchBuilder::build);
        let batch = built.map_err(|e| format!("cannot build a batch: {e}"))?;
        self.world.oracle.proposed(&[self.records]);
        let before = self.world.oracle.last();
        self.world.ask(Asker::Probe, leader, Request::Append(batch), LONG);
        self.until("the append is committed", |w| w.oracle.last() > before)
    }

    /// Appends a large record at the leader. The error, if it is refused.
    fn append_large(&mut self) -> Check<Option<ErrorKind>> {
        self.append_one(LARGE)
    }

    fn append_one(&mut self, size: u64) -> Check<Option<ErrorKind>> {
        let leader = self.leader()?;
        self.records += 1;
        let record = self.records | size;
        let mut builder = BatchBuilder::new();
        let built = builder.push(&record_of(record)).and_then(BatchBuilder::build);
        let batch = built.map_err(|e| format!("cannot build a batch: {e}"))?;
        self.world.oracle.proposed(&[record]);
        self.ask(leader, Request::Append(batch))
    }

    fn append_many(&mut self, records: u64) -> Check {
        for _ in 0..records {
            match self.append_large()? {
                None => {}
                Some(error) => return Err(format!("an append is refused: {error:?}")),
            }
        }
        Ok(())
    }

    /// Asks a node, and waits for the answer. The error, if it is one.
    fn ask(&mut self, node: NodeId, request: Request) -> Check<Option<ErrorKind>> {
        let ticket = self.world.hand(node, request)?;
        self.until("there is an answer", |_| ticket.poll().is_some())?;
        Ok(ticket.poll().and_then(|outcome| outcome.err().map(|e| e.kind())))
    }

    /// No disk has room for one more file.
    fn fill(&mut self) {
        for host in self.world.hosts.values_mut() {
            host.cramped = true;
            host.disk.limit_space(Some(host.disk.space_used()));
        }
    }

    /// Fills all disks, and then all files.
    fn fill_up(&mut self) -> Check {
        self.fill();
        for size in [LARGE, 0] {
            let limit = self.records + 2_000;
            loop {
                match self.append_one(size)? {
                    None if self.records < limit => {}
                    Some(ErrorKind::Full) => break,
                    outcome => return Err(format!("a full disk is told as {outcome:?}")),
                }
            }
        }
        Ok(())
    }

    /// Sooner or later an append is taken.
    fn takes_appends(&mut self) -> Check {
        let limit = self.world.now().plus(LONG);
        loop {
            if self.world.leader().is_some() && self.append_large()?.is_none() {
                return Ok(());
            }
            if self.world.now() > limit {
                return Err(format!("no append is taken: {}", self.world.ails()));
            }
            self.pass(ELECTION_TIMEOUT / 4)?;
        }
    }

    fn isolate(&mut self, node: NodeId) {
        let present = self.world.present();
        self.world.network.isolate(node, &present);
    }

    /// The leader of two removes itself. The other one has the change durably, and hears no more of the leader.
    fn remove_leader_unheard(&mut self) -> Check<(NodeId, NodeId)> {
        let leader = self.leader()?;
        let other = self.other(&[leader])?;
        self.pass(ELECTION_TIMEOUT)?;
        let before = self.world.machine(leader).map(|m| m.glance().last_raft);
        self.world.order(Task::Remove(leader));
        self.until("the other has the change durably", |w| {
            let glance = w.machine(other).map(|m| m.glance());
            glance.is_some_and(|g| Some(g.last_raft) > before && g.durable_raft == g.last_raft)
        })?;
        self.world.network.wall(leader, other);
        Ok((leader, other))
    }

    /// A node that is off starts on an older state of its disk, and hears what the others know of it.
    fn start_set_back(&mut self, node: NodeId, old: DiskState) -> Check {
        let disk = SimDisk::new(old.crash(|_| 0));
        disk.forget_history();
        if let Some(host) = self.world.hosts.get_mut(&node) {
            host.loses(disk, Maimed::SetBack);
        }
        self.world.start(node)?;
        self.until("it was told what the others know of it", |w| {
            w.machine(node).is_some_and(|m| m.is_introduced() || m.glance().role == Role::Removed)
        })
    }

    /// The power fails, and nothing that was not synced is left. The host comes back when it is started.
    fn cut_power(&mut self, node: NodeId) -> Check {
        let Some(host) = self.world.hosts.get_mut(&node) else { return Ok(()) };
        let unanswered = host.cut_power_at_worst();
        self.world.lost(unanswered)
    }
}

/// A voter's disk is set back to before a record that it acknowledged, while the third voter lacks it. One that knows of
/// the record is reached once; then only the third is. The two must not lead on without the record.
fn set_back_disk_stays_out() -> Check {
    let mut stage = Stage::new(3, 0)?;
    stage.append()?;
    stage.pass(ELECTION_TIMEOUT)?;
    let first = stage.leader()?;
    let old: Vec<_> = stage.world.hosts.iter().map(|(node, host)| (*node, host.disk.state())).collect();
    stage.isolate(first);
    stage.until("another leads", |w| w.leader().is_some_and(|n| n != first))?;
    let second = stage.leader()?;
    let third = stage.other(&[first, second])?;
    stage.append()?;
    stage.pass(ELECTION_TIMEOUT)?;
    stage.cut_power(third)?;
    let Some((_, old)) = old.into_iter().find(|(node, _)| *node == third) else { return Ok(()) };
    // A leader would tell the replica by its commit: so nobody leads by the time that it starts.
    stage.pass(ELECTION_TIMEOUT * 3)?;
    stage.start_set_back(third, old)?;
    stage.world.network.open();
    stage.isolate(second);
    stage.pass(ELECTION_TIMEOUT * 10)
}

/// The same of a leader's disk, and the others remember that from its heartbeats alone: a leader acknowledges nothing.
fn set_back_disk_of_a_leader_stays_out() -> Check {
    let mut stage = Stage::new(3, 0)?;
    stage.append()?;
    stage.pass(ELECTION_TIMEOUT)?;
    let first = stage.leader()?;
    let second = stage.other(&[first])?;
    let third = stage.other(&[first, second])?;
    let Some(old) = stage.world.hosts.get(&first).map(|host| host.disk.state()) else { return Ok(()) };
    stage.isolate(third);
    stage.append()?;
    stage.pass(ELECTION_TIMEOUT)?;
    stage.cut_power(first)?;
    stage.start_set_back(first, old)?;
    stage.world.network.open();
    stage.isolate(second);
    stage.pass(ELECTION_TIMEOUT * 10)
}

/// The leader of two removes itself, and the other one does not hear that this is committed. If the leader said so and
/// were taken away, the other one would wait for its vote for ever.
fn leader_waits_until_its_removal_is_known() -> Check {
    let mut stage = Stage::new(2, 0)?;
    let (leader, other) = stage.remove_leader_unheard()?;
    stage.pass(ELECTION_TIMEOUT / 2)?;
    if !stage.world.admin.is_idle() {
        stage.world.network.open();
        stage.until("the change is in force", |w| w.admin.is_idle())?;
    }
    stage.world.retire(leader)?;
    stage.world.network.open();
    stage.until("the last voter leads", |w| w.leader() == Some(other))
}

/// As above, and the walls stand until the leader steps down. It is a follower then, brings its removal into force, and has to
/// tell the other one that this is committed.
fn removed_leader_tells_what_is_committed() -> Check {
    let mut stage = Stage::new(2, 0)?;
    let (_, other) = stage.remove_leader_unheard()?;
    stage.pass(ELECTION_TIMEOUT * 4)?;
    stage.world.network.open();
    stage.until("the last voter leads, alone", |w| {
        let alone = w.machine(other).is_some_and(|m| m.voters() == (vec![other], Vec::new()));
        alone && w.leader() == Some(other)
    })
}

/// Of two the follower is removed, and gone. The leader loses its power: it must not look for the other one.
fn last_voter_remembers_that_it_is_alone() -> Check {
    let mut stage = Stage::new(2, 0)?;
    let leader = stage.leader()?;
    let other = stage.other(&[leader])?;
    stage.pass(ELECTION_TIMEOUT)?;
    stage.world.order(Task::Remove(other));
    stage.until("the change is in force", |w| {
        w.machine(leader).is_some_and(|m| m.voters() == (vec![leader], Vec::new()))
    })?;
    stage.pass(Duration::from_millis(4))?; // long enough for a sync, and too short for the proof of an idle tail
    stage.cut_power(leader)?;
    stage.world.retire(other)?;
    stage.world.start(leader)?;
    stage.until("the last voter leads", |w| w.leader() == Some(leader))
}

/// A follower gets two changes of membership at once, and loses its power right after its sync.
fn second_change_comes_with_the_commit_of_the_first() -> Check {
    let mut stage = Stage::new(3, 0)?;
    let leader = stage.leader()?;
    let behind = stage.other(&[leader])?;
    stage.isolate(behind);
    let Some(log) = stage.world.log else { return Ok(()) };
    let fresh = stage.world.new_host(Bootstrap::Join(log));
    stage.world.start(fresh)?;
    stage.world.order(Task::Add(fresh));
    stage.world.order(Task::Promote(fresh));
    stage.until("both changes are in force", |w| w.admin.is_idle())?;
    let last = stage.world.machine(leader).map(|m| m.glance().last_raft);
    stage.world.network.open();
    stage.until("the follower has both durably", |w| {
        w.machine(behind).is_some_and(|m| Some(m.glance().durable_raft) >= last)
    })?;
    stage.cut_power(behind)?;
    stage.world.start(behind)
}

/// A follower becomes the only voter, and leads a learner: its term has to be durable before it says so.
fn sole_voter_speaks_after_its_term_is_durable() -> Check {
    let mut stage = Stage::new(2, 1)?;
    let leader = stage.leader()?;
    let other = stage.other(&[leader])?;
    stage.world.order(Task::Remove(leader));
    stage.until("the last voter knows that it is alone", |w| {
        w.machine(other).is_some_and(|m| m.voters() == (vec![other], Vec::new()))
    })?;
    // Neither asked to lead nor voted for, it elects itself.
    stage.isolate(leader);
    stage.until("the last voter leads", |w| {
        w.machine(other).is_some_and(|m| m.glance().role == Role::Leader)
    })?;
    stage.pass(ELECTION_TIMEOUT)
}

/// All disks are full, and all files but those that are kept for it. A discard finds room, and makes some.
fn full_cluster_takes_a_discard() -> Check {
    let mut stage = Stage::new(3, 0)?;
    stage.append_many(150)?;
    stage.fill_up()?;
    let leader = stage.leader()?;
    let first = Index(stage.world.oracle.last().0 / 2);
    if let Some(error) = stage.ask(leader, Request::Discard(first))? {
        return Err(format!("a discard on full disks is refused: {error:?}"));
    }
    stage.takes_appends()
}

/// All disks fill up before any replica has a file ahead. Leaders come and go until there is no room for another term. No
/// replica dies of it, and all go on once there is room.
fn replica_without_room_is_silent_and_goes_on() -> Check {
    let mut stage = Stage::new(3, 0)?;
    stage.fill_up()?;
    for _ in 0..200 {
        if stage.world.counts.of(Fault::NoRoomForTerms) > 0 {
            break;
        }
        if let Some(leader) = stage.world.leader() {
            let other = stage.other(&[leader])?;
            drop(stage.world.hand(leader, Request::Transfer(other))?);
        }
        stage.pass(ELECTION_TIMEOUT)?;
    }
    if stage.world.counts.of(Fault::NoRoomForTerms) == 0 {
        return Err("there was room for 200 terms".to_owned());
    }
    stage.pass(ELECTION_TIMEOUT * 4)?;
    for host in stage.world.hosts.values() {
        host.disk.limit_space(None);
    }
    stage.takes_appends()
}

/// A follower comes back over a slow link, and much waits for it. Its answers to heartbeats must not bring the same again.
fn follower_on_a_slow_link_gets_nothing_twice() -> Check {
    const APPENDED: u64 = 250;
    let mut stage = Stage::new(3, 0)?;
    let first = stage.leader()?;
    let behind = stage.other(&[first])?;
    stage.isolate(behind);
    stage.append_many(APPENDED)?;
    // A new leader finds out first what the follower has, and sends one message at a time until then.
    let leader = stage.other(&[first, behind])?;
    if let Some(error) = stage.ask(first, Request::Transfer(leader))? {
        return Err(format!("the lead does not go to node {leader}: {error:?}"));
    }
    stage.world.network.slow(leader, behind, 20_000);
    stage.world.network.open();
    let limit = APPENDED as usize * 4_000;
    let end = stage.world.now().plus(ELECTION_TIMEOUT * 8);
    let mut most = 0;
    while stage.world.now() < end && stage.world.step()? {
        let outbox = stage.world.hosts.get(&leader).and_then(|h| h.outbox());
        let backlog = outbox.map_or(0, |outbox| outbox.backlog(behind));
        most = most.max(backlog);
        if backlog > limit {
            return Err(format!("{backlog} bytes wait for a follower that lacks fewer than {limit}"));
        }
    }
    if stage.world.counts.of(Fault::Paced) == 0 {
        return Err(format!("no more than {most} bytes wait for the follower"));
    }
    stage.world.hurry()?;
    stage.until("the follower has all", |w| {
        let last = w.machine(leader).map(|m| m.glance().last_raft);
        w.machine(behind).map(|m| m.glance().last_raft) == last
    })
}

/// A conflict cut off whole segments, so their numbers are missing, and the segment before them is lost. It is made again of
/// what the others have: the numbers between say nothing. It was taken for the one before the gap, and refused.
#[cfg(test)]
fn segment_before_a_gap_in_the_numbers_is_repaired() -> Check {
    let mut stage = Stage::new(3, 0)?;
    stage.append_many(100)?;
    let cut_off = stage.leader()?;
    stage.isolate(cut_off);
    for _ in 0..60 {
        stage.records += 1;
        let record = stage.records | LARGE;
        let mut builder = BatchBuilder::new();
        let built = builder.push(&record_of(record)).and_then(BatchBuilder::build);
        let batch = built.map_err(|e| format!("cannot build a batch: {e}"))?;
        stage.world.oracle.proposed(&[record]);
        drop(stage.world.hand(cut_off, Request::Append(batch))?);
    }
    stage.until("another leads", |w| w.leader().is_some_and(|n| n != cut_off))?;
    stage.append_many(100)?;
    stage.world.network.open();
    stage.until("all are settled", |w| w.is_settled().is_some())?;
    stage.append_many(100)?;
    stage.pass(ELECTION_TIMEOUT)?;
    stage.cut_power(cut_off)?;
    let Some(host) = stage.world.hosts.get_mut(&cut_off) else { return Ok(()) };
    let names: Vec<String> = host.disk.visible().names().map(str::to_owned).collect();
    let mut numbers: Vec<u64> = names.iter().filter_map(|n| file_number(n)).collect();
    numbers.sort_unstable();
    let gap = numbers.windows(2).find(|w| w[0] > 1 && w[1] > w[0] + 1);
    let Some(lost) = gap.map(|w| w[0]) else { return Err(format!("no number is missing: {numbers:?}")) };
    host.disk.remove(&file_name(lost)).and_then(|()| host.disk.sync_dir()).map_err(|e| e.to_string())?;
    (host.maimed, host.damaged) = (Some(Maimed::Rotten), true);
    stage.world.start(cut_off)?;
    stage.until("it takes part again", |w| w.hosts.get(&cut_off).is_some_and(|h| h.repaired))?;
    stage.until("all are settled", |w| w.is_settled().is_some())
}

// ---- one replica ----

const LOG: LogId = LogId(7);
const LEADER: NodeId = NodeId(1);
const ME: NodeId = NodeId(2);
const DIRECTORY: DirectoryId = DirectoryId(11);

/// Node 2, which has begun to follow node 1.
struct Follower(Machine);

impl Follower {
    fn new() -> Check<Self> {
        let setup = Setup {
            node: ME,
            bootstrap: Bootstrap::Join(LOG),
            clock: Arc::<SetClock>::default(),
            heartbeat: ELECTION_TIMEOUT / 10,
            election_timeout: ELECTION_TIMEOUT,
            session_idle_max: LONG,
            sessions_max: None,
            queue_bytes_max: 1 << 20,
            seed: 1,
        };
        let machine = Machine::open(&SimDisk::default(), &setup, Moment::START);
        Ok(Self(machine.map_err(|e| format!("it does not open: {e}"))?))
    }

    /// Takes a message, and does all that follows.
    fn hears(&mut self, message: &Message, directory: DirectoryId) -> Check {
        self.gets(raft_codec::encode_message(message).map_err(str::to_owned)?, directory)
    }

    /// Takes what is not raft's as well.
    fn gets(&mut self, head: Bytes, directory: DirectoryId) -> Check {
        self.0.deliver(Envelope {
            log: LOG,
            from: LEADER,
            from_directory: directory,
            to: ME,
            to_directory: DirectoryId(0),
            head,
            bodies: Vec::new(),
            urgent: false,
        });
        self.turns()
    }

    fn turns(&mut self) -> Check {
        let now = Moment::START;
        let mut turns = || {
            while self.0.run(0, now, false).0.then == Then::Syncing {
                self.0.sync(0)?;
            }
            self.0.failure().map_or(Ok(()), Err)
        };
        turns().map_err(|e| format!("it fails: {e}"))
    }
}

fn message(kind: MessageType) -> Message {
    let mut message = Message { from: LEADER.0, to: ME.0, term: 1, ..Message::default() };
    message.set_msg_type(kind);
    message
}

fn append(after: u64, entries: Vec<Entry>) -> Message {
    let commit = after + entries.len() as u64;
    let mut message = message(MessageType::MsgAppend);
    (message.index, message.log_term, message.commit) = (after, 1, commit);
    message.set_entries(entries.into());
    message
}

fn entry(index: u64) -> Entry {
    Entry { index, term: 1, ..Entry::default() }
}

/// A barrier was answered for a place before the jump, and waits for this replica to be there. What the replica shows
/// right after the jump was never a state of the log.
fn barrier_is_asked_again_after_a_jump() -> Check {
    let mut follower = Follower::new()?;
    follower.hears(&append(0, vec![entry(1)]), DIRECTORY)?;
    let asked =
        follower.0.ask(Request::Barrier, LONG, 0).map_err(|e| format!("it takes no question: {e}"))?;
    follower.turns()?;
    let question = follower.0.take_outgoing().into_iter().find_map(|envelope| {
        let (kind, body) = raft_codec::parse_head(&envelope.head).ok()?;
        let message = Message::parse_from_bytes(&body).ok().filter(|_| kind == HeadKind::Raft)?;
        (message.get_msg_type() == MessageType::MsgReadIndex).then_some(message)
    });
    let Some(question) = question else { return Err("it does not ask its leader".to_owned()) };
    let mut answer = message(MessageType::MsgReadIndexResp);
    answer.index = 20;
    answer.set_entries(question.get_entries().to_vec().into());
    follower.hears(&answer, DIRECTORY)?;
    follower.hears(&snapshot_of(LEADER, DIRECTORY, ME), DIRECTORY)?;
    if follower.0.glance().committed_raft != RaftIndex(50) {
        return Err(format!("it does not jump: {:?}", follower.0.glance()));
    }
    match asked.poll() {
        None => Ok(()),
        Some(told) => Err(format!("a barrier from before the jump was passed: {told:?}")),
    }
}

/// Another leader has put another entry there since: its body must not go with the old header.
fn body_of_another_term_is_not_sent() -> Check {
    let mut follower = Follower::new()?;
    follower.hears(&append(0, vec![entry(1)]), DIRECTORY)?;
    if follower.0.body_of(RaftIndex(1), Term(1)).is_err() {
        return Err("the entry is not there".to_owned());
    }
    match follower.0.body_of(RaftIndex(1), Term(2)) {
        Err(_) => Ok(()),
        Ok(_) => Err("the body of entry 1 of term 1 was given for that of term 2".to_owned()),
    }
}

/// The cluster knows another directory for node 1: what comes from this one is not the leader's.
fn another_directory_is_not_heard() -> Check {
    let mut follower = Follower::new()?;
    let here = follower.0.identity().1;
    let changed = |index, node, members: &[Member]| {
        let membership = Membership::of(members.iter().cloned());
        let change = raft_codec::conf_change(&[Change::Promote(node)], &membership);
        let mut entry = entry(index);
        entry.set_entry_type(EntryType::EntryConfChangeV2);
        entry.data = change.write_to_bytes().unwrap_or_default().into();
        entry
    };
    let voters = [Member::voter(LEADER, DIRECTORY, ""), Member::voter(ME, here, "")];
    let entries = vec![entry(1), changed(2, LEADER, &voters[..1]), changed(3, ME, &voters)];
    follower.hears(&append(0, entries), DIRECTORY)?;
    follower.hears(&append(3, vec![entry(4)]), DirectoryId(12))?;
    if follower.0.glance().last_raft != RaftIndex(3) {
        return Err(format!(
            "it took an entry from a directory that is no member's: {:?}",
            follower.0.glance()
        ));
    }
    follower.hears(&append(3, vec![entry(4)]), DIRECTORY)?;
    if follower.0.glance().last_raft != RaftIndex(4) {
        return Err(format!("it did not take its leader's entry: {:?}", follower.0.glance()));
    }
    Ok(())
}

/// A replica that repairs its log replaces a superseded end by what it is told is committed.
fn committed_entries_alone_are_lent_as_committed() -> Check {
    let mut follower = Follower::new()?;
    let entries = (1..=5).map(entry).collect();
    follower.hears(&Message { commit: 3, ..append(0, entries) }, DIRECTORY)?;
    let anchor = (RaftIndex(5), Term(1));
    let fetch = Fetch { first: RaftIndex(2), last: RaftIndex(5), anchor, bytes_max: 1 << 20 };
    follower.gets(fetch.encode_committed(), DIRECTORY)?;
    let answer = follower.0.take_outgoing().into_iter().find_map(|envelope| {
        let (kind, body) = raft_codec::parse_head(&envelope.head).ok()?;
        (kind == HeadKind::Committed).then(|| parse_blocks(&body, envelope.bodies))
    });
    let given: Option<Vec<u64>> =
        answer.and_then(Result::ok).map(|blocks| blocks.iter().map(|(h, _)| h.raft_index.0).collect());
    match given {
        Some(given) if given == [2, 3] => Ok(()),
        given => Err(format!("of five entries, of which three are committed, it gives {given:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_segment_is_repaired_whatever_its_number() {
        assert_eq!(segment_before_a_gap_in_the_numbers_is_repaired(), Ok(()));
    }

    #[test]
    fn every_directed_scenario_holds_without_a_bug() {
        for (name, play) in SCENARIOS {
            assert_eq!(play(), Ok(()), "{name}");
        }
    }
}
