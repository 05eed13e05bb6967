//! The rules that the replicas follow, the size of the cluster, and the number of faults and changes.

use clap::ValueEnum;
use serde::Serialize;

/// The largest cluster.
pub(crate) const NODES_MAX: usize = 5;

/// The rules of the log that the model can switch off. All of them on: the log as it ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct Rules {
    /// A replica that has started greets every member that it knows, and every node that sends it anything. Off: it
    /// greets the voters that it remembers, and candidates. `handshake.rs`: `greet_all`, `greeted`.
    pub(crate) greet_all: bool,
    /// A report of a commit counts once it is durable. Off: once it is in memory. `membership_change.rs`: `ignorant`,
    /// `durably_known`.
    pub(crate) durable_word: bool,
    /// A leader brings a change into force once a majority of the new voters knows of the commit. Off: at the commit.
    /// `membership_change.rs`: `is_known`.
    pub(crate) await_known: bool,
    /// A change is written after the record that the one before is committed. `ready.rs`: `keep_commit_before`.
    pub(crate) keep_commit_before: bool,
    /// A removed replica reports to those who ask for its vote what is committed. Off: it votes for them, and takes no
    /// part in what they elect. `membership_change.rs`: `send_commit`.
    pub(crate) send_commit: bool,
    /// A removed replica answers those who ask for its vote at all. `membership_change.rs`: `answer_on`.
    pub(crate) answer_on: bool,
    /// A replica that has started waits to be introduced. `handshake.rs`: `await_introduction`.
    pub(crate) introduce: bool,
    /// A replica of which others remember more than its disk holds takes no part. `handshake.rs`: `introduced`.
    pub(crate) set_back_check: bool,
    /// A replica votes once all voters that can be reached have answered. Off: once a majority has. `handshake.rs`:
    /// `weigh_answers`.
    pub(crate) hear_all: bool,
    /// A leader sends messages once its term is durable. `ready.rs`: `gated`.
    pub(crate) send_gate: bool,
}

impl Rules {
    pub(crate) const SHIPPED: Self = Self {
        greet_all: true,
        durable_word: true,
        await_known: true,
        keep_commit_before: true,
        send_commit: true,
        answer_on: true,
        introduce: true,
        set_back_check: true,
        hear_all: true,
        send_gate: true,
    };

    pub(crate) fn without(old: impl IntoIterator<Item = Old>) -> Self {
        let mut rules = Self::SHIPPED;
        for old in old {
            *match old {
                Old::Greetings => &mut rules.greet_all,
                Old::Word => &mut rules.durable_word,
                Old::Known => &mut rules.await_known,
                Old::Note => &mut rules.keep_commit_before,
                Old::TellCommit => &mut rules.send_commit,
                Old::AnswerOn => &mut rules.answer_on,
                Old::Introduction => &mut rules.introduce,
                Old::SetBack => &mut rules.set_back_check,
                Old::HearAll => &mut rules.hear_all,
                Old::Gate => &mut rules.send_gate,
            } = false;
        }
        rules
    }
}

/// A disabled rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Old {
    /// A replica that starts greets only the voters that it remembers, and candidates
    Greetings,
    /// A change is in force, and answered, before its commit is durable
    Word,
    /// A change is in force, and answered, as soon as its leader knows that it is committed
    Known,
    /// A change can be durable without the record that the change before is committed
    Note,
    /// A removed replica votes for those who ask, instead of reporting what is committed
    TellCommit,
    /// A removed replica does not answer those who ask for its vote
    AnswerOn,
    /// A replica that starts does not wait for answers
    Introduction,
    /// A replica takes part although others remember more than it has
    SetBack,
    /// A replica votes once a majority has answered
    HearAll,
    /// A leader sends messages before its term is durable
    Gate,
}

/// A kind of change of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// A fresh node becomes a learner
    Add,
    /// A learner becomes a voter
    Promote,
    /// A voter becomes a learner
    Demote,
    /// A member leaves
    Remove,
    /// A learner becomes a voter and a voter leaves, through a joint configuration
    Swap,
}

/// The bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Bounds {
    /// Voters at the start; node 1 leads them in term 1.
    pub(crate) voters: usize,
    /// Learners at the start.
    pub(crate) learners: usize,
    /// Nodes that are no members at the start.
    pub(crate) fresh: usize,
    /// The last term in which a node may start an election.
    pub(crate) terms: u8,
    /// Changes of membership that are proposed.
    pub(crate) changes: u8,
    pub(crate) kinds: Vec<Kind>,
    /// Crashes of single nodes over the whole run. A crashed node keeps its synced writes and the first few writes
    /// after them, and may restart.
    pub(crate) crashes: u8,
    /// Messages that are held back, over the whole run, and can arrive at any later time, any number of times. All others
    /// arrive at once or are lost.
    pub(crate) late: u8,
    /// Disks that are set back to an earlier durable state.
    pub(crate) set_backs: u8,
    /// Whether these can be disks of replicas that have led since.
    pub(crate) leaders_set_back: bool,
    /// Whether this can happen while a leader of an older term than the one on the disk still leads.
    pub(crate) set_back_beside: bool,
}

impl Bounds {
    pub(crate) fn nodes(&self) -> usize {
        self.voters + self.learners + self.fresh
    }
}
