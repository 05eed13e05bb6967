//! `chiplog member`: changes the membership of a cluster. `chiplog transfer-leader`: changes its leader.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::number::whole_number;
use crate::common::output::Ui;
use crate::connect::cluster::{Asker, Connect, host_port};
use crate::connect::cluster_status::ClusterQuery;
use crate::connect::target::Servers;
use chiplog::ErrorKind;
use chiplog_net::wire::proto::v1::member_change::Change;
use chiplog_net::wire::proto::v1::{
    AddMember, ChangeMembersRequest, InitRequest, JoinRequest, MemberChange, Role, SetAddress,
    StatusResponse, TransferLeaderRequest,
};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  chiplog member init log1:7411                               log1 is the first of a new cluster
  chiplog member add log2:7411 --cluster log1:7411 --promote  log2 copies the log, then it votes
  chiplog member remove 2 --cluster log1:7411                 node 2 leaves for good
  chiplog member set-address 3 --client log9:7411 --peer log9:7412 --cluster log1:7411
                                                              node 3 has moved to another machine";

/// Change the members of a cluster.
///
/// Start each new server with a number of its own (`chiplog serve`); it waits. `init` makes it the first
/// server of a new cluster. `add` adds it to a cluster as a learner, which receives the log and does not
/// vote. `promote` lets the learner vote once it has caught up.
///
/// A change is refused (status 2), and nothing is changed, if the leader would not hear from a majority of
/// the voters that are left. Example: of three voters one is down. That one can be removed, the other two
/// cannot. A change is also refused if it takes the vote of a running node while another voter is silent:
/// probably the silent one was meant. On servers with named logs a voter leaves only while all groups have the
/// voters of the cluster, and the command returns once no group counts its vote any more: keep the server
/// running until then. --force makes the change nevertheless, and does not wait.
///
/// After a change the command prints which nodes vote, which of them are silent, and how many more may be
/// lost (with --json: voters, silent, losses_tolerated).
///
/// If it is unknown whether a change was made (status 5), check with `chiplog status`, or run the same
/// command again: a change that was made is not made twice.
///
/// A server that lost its disk does not return under its old number. While a majority of the voters runs
/// without it, first add a server under a number that was never used, with --promote, and then remove the
/// lost one. In this order there are never fewer voters than before.
///
/// A server that moved together with its disk keeps its number: start it with its new addresses, and announce
/// them with `set-address`.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct MemberCommand {
    #[command(subcommand)]
    what: What,
}

/// The cluster.
#[derive(Args, Debug)]
struct Of {
    /// Servers of the cluster, by their address for clients. One that runs is enough; A,B,C are tried in
    /// turn.
    #[arg(long, value_name = "HOST:PORT", env = "CHIPLOG_SERVERS", value_delimiter = ',', required = true, value_parser = host_port)]
    cluster: Vec<String>,

    /// How long to wait, in seconds. A learner has to catch up before it votes.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = whole_number::<u32>("a number of seconds", 1..=600))]
    timeout: u32,

    #[command(flatten)]
    connect: Connect,
}

impl Of {
    fn servers(&self) -> Servers {
        Servers::new(self.cluster.clone())
    }
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a new cluster with this waiting server as its only voter.
    ///
    /// Refused if the server is at the address of a member of another cluster, whose directory was lost: if
    /// replicas of that cluster call it, or if the servers of --cluster list it.
    Init {
        /// The server.
        #[arg(value_name = "HOST:PORT", value_parser = host_port)]
        server: String,
        /// Servers that are asked whether their cluster already has a member at this address.
        #[arg(long, value_name = "HOST:PORT", env = "CHIPLOG_SERVERS", value_delimiter = ',', value_parser = host_port)]
        cluster: Vec<String>,
        /// Make the cluster even if another cluster has a member at this address.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        connect: Connect,
    },
    /// Add a waiting server to the cluster, as a learner. After a failure, run it again: it continues where
    /// it stopped.
    ///
    /// The server's directory is empty, or has a copy of the cluster's log (`chiplog follow DIR SERVERS
    /// --segments`, ended). The copy becomes its replica, and the leader sends it only what the copy lacks.
    Add {
        /// The new server.
        #[arg(value_name = "HOST:PORT", value_parser = host_port)]
        server: String,
        /// Let it vote once it has caught up.
        #[arg(long)]
        promote: bool,
        #[command(flatten)]
        of: Of,
    },
    /// Let a learner vote, once it has caught up.
    Promote {
        /// The node's number.
        #[arg(value_parser = node)]
        node: u64,
        #[command(flatten)]
        of: Of,
    },
    /// Take a voter's vote: it continues as a learner.
    Demote {
        /// The node's number.
        #[arg(value_parser = node)]
        node: u64,
        /// Also if the leader would hear no majority of the voters that are left, or if another voter than
        /// this one is silent.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        of: Of,
    },
    /// Announce new addresses of a replica to the cluster. Addresses that are not given stay as they are.
    SetAddress {
        /// The node's number.
        #[arg(value_parser = node)]
        node: u64,
        /// The address for the other replicas.
        #[arg(long, value_name = "HOST:PORT", value_parser = host_port, required_unless_present_any = ["client", "zone"])]
        peer: Option<String>,
        /// The address for clients.
        #[arg(long, value_name = "HOST:PORT", value_parser = host_port)]
        client: Option<String>,
        /// A label of the replica's location; empty: none.
        #[arg(long)]
        zone: Option<String>,
        #[command(flatten)]
        of: Of,
    },
    /// Remove a replica from the cluster for good.
    Remove {
        /// The node's number.
        #[arg(value_parser = node)]
        node: u64,
        /// Also if the leader would hear no majority of the voters that are left, or if another voter than
        /// this one is silent.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        of: Of,
    },
}

fn node(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(node) if node > 0 => Ok(node),
        _ => Err("not a node number: give a number from 1, as `chiplog status` shows it".into()),
    }
}

/// How long a server may take to report its status.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a new leader may take to hear from the other voters after a change.
const NEW_LEADER: Duration = Duration::from_secs(2);

const TRANSFER_EXAMPLES: &str = "\
Examples:
  chiplog transfer-leader --cluster log1:7411      to the voter that lacks least, before a stop
  chiplog transfer-leader 3 --cluster log1:7411    node 3
  chiplog transfer-leader --cluster log1:7411/orders
      of the group that holds the named log orders, and all logs beside it";

/// Transfer leadership to another voter.
///
/// Groups of named logs have leaders of their own: give one by a log in it, as /LOG after the servers, or as
/// /_group-N; /_system is the log of the names.
#[derive(Args, Debug)]
#[command(after_long_help = TRANSFER_EXAMPLES)]
pub(crate) struct TransferLeader {
    /// The number of the new leader. Default: the voter that lacks the fewest entries.
    #[arg(value_parser = node)]
    node: Option<u64>,

    /// Servers of the cluster, by their address for clients. One that runs is enough; A,B,C are tried in
    /// turn.
    #[arg(long, value_name = "HOST:PORT[/LOG]", env = "CHIPLOG_SERVERS", required = true)]
    cluster: Vec<Servers>,

    /// How long to wait, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = whole_number::<u32>("a number of seconds", 1..=600))]
    timeout: u32,

    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &MemberCommand, ui: &Ui) -> Result<Exit> {
    match &args.what {
        What::Init { server, cluster, force, connect } => init(server, cluster, *force, connect, ui)?,
        What::Add { server, promote, of } => add(server, *promote, of, ui)?,
        What::Promote { node, of } => one(of, *node, Change::Promote(*node), false, "votes", ui)?,
        What::Demote { node, force, of } => {
            one(of, *node, Change::Demote(*node), *force, "is a learner", ui)?
        }
        What::Remove { node, force, of } => one(of, *node, Change::Remove(*node), *force, "is removed", ui)?,
        What::SetAddress { node, peer, client, zone, of } => {
            set_address(*node, [peer, client, zone].map(Option::as_deref), of, ui)?;
        }
    }
    Ok(Exit::Ok)
}

fn init(server: &str, cluster: &[String], force: bool, connect: &Connect, ui: &Ui) -> Result<()> {
    let asker = Asker::new(connect, ui)?;
    if !force {
        check_unlisted(&asker, server, cluster)?;
    }
    let made = asker.ask_first(server, Duration::from_secs(30), |mut admin| async move {
        admin.init(InitRequest { force }).await.map(tonic::Response::into_inner)
    })?;
    let words = format!("{server} is the first of the cluster of log {}", made.log_id);
    ui.result(&json!({ "log_id": made.log_id }), |_| words)
}

/// Fails if the servers of `cluster`, as far as they answer, list a member at the address of `server`.
fn check_unlisted(asker: &Asker, server: &str, cluster: &[String]) -> Result<()> {
    let others: Vec<String> = cluster.iter().filter(|other| *other != server).cloned().collect();
    if others.is_empty() {
        return Ok(());
    }
    let status = asker.status(server)?;
    if !status.log_id.is_empty() {
        return Ok(()); // it knows itself which cluster it belongs to
    }
    let found = asker.wait(ClusterQuery::new(asker.dialler().clone(), &Servers::new(others)).round(PATIENCE));
    let (Some(member), Some(log)) = (found.member_at(server, &status), found.log_id()) else { return Ok(()) };
    let node = member.node;
    let what = format!(
        "{server} is at the address of node {node} of the cluster of log {log}: its directory was emptied, or is not mounted. Give a server that lost its disk a new number there: `chiplog member add`, then `chiplog member remove {node}`; --force makes a new cluster nevertheless"
    );
    Err(Failure::new(ErrorKind::Membership, what))
}

fn add(server: &str, promote: bool, of: &Of, ui: &Ui) -> Result<()> {
    let asker = Asker::new(&of.connect, ui)?;
    let (_, leader) = asker.leader(&of.servers())?;
    let waiting = asker.status(server)?;
    if waiting.role() == Role::Waiting && leader.members.iter().any(|m| m.node == waiting.node) {
        let what = format!(
            "{server} has no replica, but its number {} is that of a member: give a server that lost its disk a new number",
            waiting.node
        );
        return Err(Failure::new(ErrorKind::Membership, what));
    }
    let (log_id, first) = (leader.log_id.clone(), leader.first);
    let place = asker.ask(server, Duration::from_secs(30), |mut admin| async move {
        admin.join(JoinRequest { log_id, first }).await.map(tonic::Response::into_inner)
    })?;
    let node = place.node;
    let known = leader.members.iter().find(|m| m.node == node);
    if let Some(other) = known.filter(|m| m.directory != place.directory) {
        let what = format!(
            "node {node} is already a member, with directory {}: give {server} another number",
            other.directory
        );
        return Err(Failure::new(ErrorKind::Membership, what));
    }
    if known.is_none() {
        let add = AddMember {
            node,
            directory: place.directory.clone(),
            peer_address: place.peer_address,
            client_address: place.client_address,
            zone: place.zone,
        };
        change(&asker, of, Change::Add(add), false)?;
    }
    if promote && !known.is_some_and(|m| m.voter) {
        change(&asker, of, Change::Promote(node), false)?;
    }
    let votes = promote || known.is_some_and(|m| m.voter);
    let part = if votes { "votes" } else { "is a learner" };
    let shown = json!({ "node": node, "directory": place.directory, "voter": votes });
    print_members(&asker, of, leader.node, shown, &format!("node {node} at {server} {part}"), ui)
}

/// The voters after a change.
struct Outcome {
    voters: Vec<u64>,
    /// The voters that the leader does not hear.
    silent: Vec<u64>,
}

impl Outcome {
    fn of(leader: &StatusResponse) -> Self {
        let voters: Vec<u64> =
            leader.members.iter().filter(|m| m.voter && !m.leaving).map(|m| m.node).collect();
        let is_active = |node| node == leader.node || leader.peers.iter().any(|p| p.node == node && p.active);
        let silent = voters.iter().copied().filter(|node| !is_active(*node)).collect();
        Self { voters, silent }
    }

    /// The number of voters that may still be lost. None: too many are silent already.
    fn losses_tolerated(&self) -> Option<usize> {
        (self.voters.len().saturating_sub(1) / 2).checked_sub(self.silent.len())
    }

    fn words(&self) -> String {
        let list = |nodes: &[u64]| nodes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let further = if self.silent.is_empty() { "" } else { "further " };
        let bears = match self.losses_tolerated() {
            None => "that leaves no majority".to_owned(),
            Some(0) => format!("no {further}loss is tolerated"),
            Some(n) => format!("the {further}loss of {n} is tolerated"),
        };
        let silent = match &self.silent[..] {
            [] => String::new(),
            silent => format!("; nothing is heard of {}", list(silent)),
        };
        format!("voters: {}{silent}: {bears}", list(&self.voters))
    }
}

/// Prints the result of a change. `led`: the node that led before it.
fn print_members(asker: &Asker, of: &Of, led: u64, mut shown: Value, done: &str, ui: &Ui) -> Result<()> {
    let begun = Instant::now();
    let outcome = loop {
        let Ok((_, leader)) = asker.leader(&of.servers()) else { break None };
        let outcome = Outcome::of(&leader);
        // A new leader first has to hear from the others.
        if outcome.silent.is_empty() || leader.node == led || begun.elapsed() > NEW_LEADER {
            break Some(outcome);
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let Some(outcome) = outcome else {
        return ui.result(&shown, |_| {
            format!("{done}; no leader answers: `chiplog status` shows which nodes vote")
        });
    };
    shown["voters"] = json!(outcome.voters);
    shown["silent"] = json!(outcome.silent);
    shown["losses_tolerated"] = json!(outcome.losses_tolerated());
    ui.result(&shown, |_| format!("{done}; {}", outcome.words()))
}

/// `peer`, `client` and `zone`: None where they stay as they are.
fn set_address(node: u64, [peer, client, zone]: [Option<&str>; 3], of: &Of, ui: &Ui) -> Result<()> {
    let asker = Asker::new(&of.connect, ui)?;
    let (_, leader) = asker.leader(&of.servers())?;
    let Some(member) = leader.members.iter().find(|m| m.node == node) else {
        return Err(Failure::new(
            ErrorKind::Membership,
            format!("node {node} is not a member of the cluster"),
        ));
    };
    let or = |new: Option<&str>, old: &String| new.map_or_else(|| old.clone(), str::to_owned);
    let address = SetAddress {
        node,
        peer_address: or(peer, &member.peer_address),
        client_address: or(client, &member.client_address),
        zone: or(zone, &member.zone),
    };
    change(&asker, of, Change::SetAddress(address.clone()), false)?;
    let SetAddress { peer_address, client_address, zone, .. } = address;
    let shown = json!({ "node": node, "peer": peer_address, "client": client_address, "zone": zone });
    ui.result(&shown, |_| format!("node {node} serves clients at {client_address}, peers at {peer_address}"))
}

fn one(of: &Of, node: u64, what: Change, force: bool, words: &str, ui: &Ui) -> Result<()> {
    let asker = Asker::new(&of.connect, ui)?;
    let (_, leader) = asker.leader(&of.servers())?;
    let member = leader.members.iter().find(|m| m.node == node && !m.leaving);
    let is_done = match what {
        Change::Promote(_) => member.is_some_and(|m| m.voter),
        Change::Demote(_) => member.is_some_and(|m| !m.voter),
        _ => false, // a removed node is reported as no member: the number may be wrong
    };
    let takes_a_vote = match what {
        Change::Remove(_) | Change::Demote(_) => member.is_some_and(|m| m.voter),
        _ => false,
    };
    let others = leader.members.iter().filter(|m| m.voter && !m.leaving && m.node != node).count();
    if !is_done {
        change(&asker, of, what, force).map_err(|failure| match failure.kind() {
            // If the voter is not the last one, the other reasons for this kind pass by themselves.
            ErrorKind::Membership if takes_a_vote && others > 0 && !force => {
                failure.with_words("--force makes the change nevertheless")
            }
            _ => failure,
        })?;
    }
    print_members(&asker, of, leader.node, json!({ "node": node }), &format!("node {node} {words}"), ui)
}

fn change(asker: &Asker, of: &Of, change: Change, force: bool) -> Result<()> {
    let timeout_millis = of.timeout * 1000;
    // A little longer than the server's own limit, because the server's error says more.
    let patience = Duration::from_secs(u64::from(of.timeout) + 5);
    let changed = asker.ask_leader(&of.servers(), patience, |mut admin| {
        let changes = vec![MemberChange { change: Some(change.clone()) }];
        let request = ChangeMembersRequest { changes, timeout_millis, force, ..Default::default() };
        async move { admin.change_members(request).await.map(drop) }
    });
    changed.map_err(|failure| match failure.kind() {
        ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Poisoned => {
            let words =
                "check with `chiplog status` whether the change was made, or run the same command again";
            failure.with_words(words)
        }
        _ => failure,
    })
}

pub(crate) fn transfer(args: &TransferLeader, ui: &Ui) -> Result<Exit> {
    let servers = Servers::joined(&args.cluster)?;
    let asker = Asker::new(&args.connect, ui)?;
    let begun = Instant::now();
    let (leader, to) = loop {
        let (_, leader) = asker.leader(&servers)?;
        let votes = |node| leader.members.iter().any(|m| m.node == node && m.voter && !m.leaving);
        let others = leader.peers.iter().filter(|p| p.active && votes(p.node));
        let closest = others.max_by_key(|p| p.matched_raft).map(|p| p.node);
        if let Some(to) = args.node.or(closest) {
            break (leader, to);
        }
        // Once per election timeout the leader counts every peer as silent until its next answer to a
        // heartbeat.
        if begun.elapsed() > Duration::from_secs(2) {
            return Err(Failure::new(ErrorKind::Membership, "no other voter answers"));
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    if leader.node != to {
        let timeout_millis = args.timeout * 1000;
        let patience = Duration::from_secs(u64::from(args.timeout) + 5);
        asker.ask_leader(&servers, patience, |mut admin| {
            let request = TransferLeaderRequest { log: servers.log.clone(), to, timeout_millis };
            async move { admin.transfer_leader(request).await.map(drop) }
        })?;
    }
    ui.result(&json!({ "leader": to }), |_| format!("node {to} leads"))?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_names_voters_silence_and_what_is_tolerated() {
        for (voters, silent, told, tolerated) in [
            (&[1, 2, 3][..], &[][..], "voters: 1, 2, 3: the loss of 1 is tolerated", Some(1)),
            (&[1, 2], &[], "voters: 1, 2: no loss is tolerated", Some(0)),
            (
                &[1, 2, 3],
                &[3],
                "voters: 1, 2, 3; nothing is heard of 3: no further loss is tolerated",
                Some(0),
            ),
            (
                &[1, 2, 3, 4, 5],
                &[3],
                "voters: 1, 2, 3, 4, 5; nothing is heard of 3: the further loss of 1 is tolerated",
                Some(1),
            ),
            (&[1, 3], &[3], "voters: 1, 3; nothing is heard of 3: that leaves no majority", None),
        ] {
            let outcome = Outcome { voters: voters.to_vec(), silent: silent.to_vec() };
            assert_eq!((&*outcome.words(), outcome.losses_tolerated()), (told, tolerated));
        }
    }
}
