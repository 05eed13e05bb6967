//! Sources: the choice of the server that a follower receives from. Any server with the log will do; it need not lead.
//!
//! ```text
//! asked about themselves: the given servers, and the servers that these named before
//!   another log, or a version that is too old:  not used
//!   otherwise, best first:  has the next records | did not fail recently | in the preferred zone | does not lead | random
//! ```
//!
//! Invariants:
//! - The follower never learns servers from a server of another log.
//! - The connection of a request ends with the request: servers that do not feed the follower have no work for it.
//!
//! Must not know: the contents of messages, files.

use crate::client::ClientOptions;
use crate::client::Shown;
use crate::client::cluster::discovery::{Answer, Servers, leads};
use crate::wire::ids::from_hex;
use crate::wire::proto::v1::{InfoRequest, ServerInfoResponse};
use crate::wire::protocol::{FEATURE_FOLLOW, FEATURE_FOLLOW_LOG, PROTOCOL};
use crate::wire::status::from_status;
use chiplog::{Error, ErrorKind, Index, LogId, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

/// After the first good answer, other answers are awaited for this long, so that not all followers use the fastest
/// server.
const GRACE: Duration = Duration::from_millis(30);

/// A server that failed is not chosen for this long, if there is another.
const AVOID: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Sources {
    seeds: Vec<String>,
    zone: String,
    options: ClientOptions,
    /// The feature that a server needs to start a copy.
    needs: &'static str,
    /// The servers as they named each other in their last answers: address, and whether it led.
    known: BTreeMap<String, bool>,
    /// Servers that failed recently.
    failed: BTreeMap<String, Instant>,
    /// Servers that can never be used, with the reason.
    refused: BTreeMap<String, Error>,
    /// Servers that have discarded the next records. Asked again when no other server answers.
    without: BTreeSet<String>,
    /// Since when all servers answer that the log does not exist.
    missing: Option<Instant>,
}

/// The follower's copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExistingCopy {
    /// Its log.
    pub(super) log: LogId,
    /// It is one named log, and not a log with all its entries.
    pub(super) is_of_one_log: bool,
}

/// A server that can feed the follower.
struct Candidate {
    address: String,
    info: ServerInfoResponse,
}

/// Leaves out servers that have another log of the name than its leader: one that lags behind can still have a deleted log. Of several that
/// consider themselves the leader, the one in the newest term counts.
fn leave_deleted(found: &mut Vec<Candidate>) {
    let led = found.iter().filter(|candidate| leads(&candidate.info) && !candidate.info.log_id.is_empty());
    if let Some(log_id) =
        led.max_by_key(|candidate| candidate.info.term).map(|candidate| candidate.info.log_id.clone())
    {
        found.retain(|candidate| candidate.info.log_id.is_empty() || candidate.info.log_id == log_id);
    }
}

type Rank = [bool; 5];

/// The rank of a server without any disadvantage.
const BEST: Rank = [false; 5];

impl Sources {
    pub(super) fn new(seeds: Vec<String>, zone: String, options: ClientOptions, needs: &'static str) -> Self {
        Self {
            seeds,
            zone,
            options,
            needs,
            known: BTreeMap::new(),
            failed: BTreeMap::new(),
            refused: BTreeMap::new(),
            without: BTreeSet::new(),
            missing: None,
        }
    }

    /// The server failed: the next choice is another one, if there is one.
    pub(super) fn failed(&mut self, server: &str) {
        self.failed.insert(server.to_owned(), Instant::now());
    }

    /// The server works as it should.
    pub(super) fn works(&mut self, server: &str) {
        self.failed.remove(server);
    }

    /// The server has discarded the next records. Returns whether all servers that answered have: then the records are
    /// gone.
    pub(super) fn is_gone(&mut self, server: &str) -> bool {
        let known = !self.without.insert(server.to_owned());
        known || self.usable().len() == 1
    }

    /// The position has moved: the next record is another one now.
    pub(super) fn came(&mut self) {
        self.without.clear();
    }

    /// Whether there is a server, other than this one, that has not failed recently.
    pub(super) fn has_other(&self, server: &str) -> bool {
        let failed = |other: &String| self.failed.get(other).is_some_and(|since| since.elapsed() < AVOID);
        self.usable().into_iter().any(|other| other != server && !failed(other))
    }

    fn usable(&self) -> BTreeSet<&String> {
        self.seeds.iter().chain(self.known.keys()).filter(|s| !self.refused.contains_key(*s)).collect()
    }

    /// The server has another log or history: it is not asked again.
    pub(super) fn refuse(&mut self, server: &str, error: Error) {
        self.known.remove(server);
        self.refused.insert(server.to_owned(), error);
    }

    /// Some: no server can be used; the error of the last given one.
    pub(super) fn nobody_left(&self) -> Option<Error> {
        if !self.usable().is_empty() {
            return None;
        }
        self.seeds.iter().rev().find_map(|seed| self.refused.get(seed).cloned())
    }

    /// For how long all servers have answered that the log does not exist, without a break.
    pub(super) fn missing(&self) -> Option<Duration> {
        self.missing.map(|since| since.elapsed())
    }

    /// Asks all servers about themselves, and chooses one. `copy`: the existing copy.
    ///
    /// # Errors
    /// `NotFound`: all servers answered that the log does not exist. `Unavailable` and similar: no server answered. If no server
    /// can be used: the last reason.
    pub(super) async fn choose(&mut self, copy: Option<ExistingCopy>) -> Result<String> {
        self.failed.retain(|_, since| since.elapsed() < AVOID);
        let servers = Servers::alone(self.seeds.clone(), self.options.clone());
        let mut asked: BTreeSet<String> = self.usable().into_iter().cloned().collect();
        let mut answers = JoinSet::new();
        servers.ask_each(asked.iter().cloned(), &mut answers);
        let (mut found, mut failed, mut until) = (Vec::new(), None, None);
        let mut is_missing = !asked.is_empty();
        loop {
            let next = answers.join_next();
            let answer = match until {
                None => next.await,
                Some(until) => timeout_at(until, next).await.unwrap_or(None),
            };
            let Some(answer) = answer else { break };
            let Ok(answer) = answer else { continue };
            match self.check_answer(answer, copy) {
                Ok(answer) => {
                    is_missing = false;
                    // Servers that the answer names are asked as well.
                    let named = answer.info.servers.iter().map(|s| s.address.clone());
                    let new: Vec<_> = named.filter(|a| !self.refused.contains_key(a)).collect();
                    let new = new.into_iter().filter(|a| asked.insert(a.clone()));
                    servers.ask_each(new.collect::<Vec<_>>(), &mut answers);
                    if answer.info.elsewhere {
                        let what = format!("{}: the log runs on other servers", answer.address);
                        failed.get_or_insert(Error::new(ErrorKind::Unavailable, what));
                        continue;
                    }
                    if self.rank(&answer, copy.is_none()) == BEST {
                        until.get_or_insert_with(|| Instant::now() + GRACE);
                    }
                    found.push(answer);
                }
                Err(error) => {
                    is_missing &= error.kind() == ErrorKind::NotFound;
                    failed = Some(error);
                }
            }
        }
        self.missing = is_missing.then(|| self.missing.unwrap_or_else(Instant::now));
        if copy.is_none() {
            leave_deleted(&mut found);
        }
        self.learn(&found);
        fastrand::shuffle(&mut found);
        let best = found.into_iter().min_by_key(|answer| self.rank(answer, copy.is_none()));
        best.map(|answer| answer.address).ok_or_else(|| {
            let nobody = || Error::new(ErrorKind::Unavailable, "no server answers");
            self.nobody_left().or(failed).unwrap_or_else(nobody)
        })
    }

    /// Lower is better. In this order: it lacks the next records, failed recently, is a copy that may hold fewer
    /// records than the log (counts for a `new` copy), is in another zone, leads.
    fn rank(&self, Candidate { address, info }: &Candidate, new: bool) -> Rank {
        let far = !self.zone.is_empty() && info.zone != self.zone;
        let failed = self.failed.contains_key(address);
        [self.without.contains(address), failed, new && info.follows, far, leads(info)]
    }

    /// Checks a server's answer: whether the server can be used.
    fn check_answer(&mut self, answer: Answer, copy: Option<ExistingCopy>) -> Result<Candidate> {
        let Answer { address, info, .. } = answer;
        let of = |kind, what: String| Error::new(kind, format!("{address}: {what}"));
        let info = info.map_err(|e| of(e.kind(), e.to_string()))?;
        if info.protocol_min > *PROTOCOL.end() || info.protocol_max < *PROTOCOL.start() {
            let what = format!("it supports only revisions {} to {}", info.protocol_min, info.protocol_max);
            return Err(of(ErrorKind::Unsupported, what));
        }
        if info.logs.is_empty() {
            return Err(of(ErrorKind::Unavailable, "it is not part of a cluster yet".into()));
        }
        let name = &self.options.log;
        if !name.is_empty() && !info.logs.contains(name) {
            return Err(of(ErrorKind::NotFound, format!("there is no log {name:?}")));
        }
        let has = |feature: &str| info.features.iter().any(|f| f == feature);
        let needs = match copy {
            None => self.needs,
            Some(ExistingCopy { is_of_one_log: true, .. }) => FEATURE_FOLLOW_LOG,
            Some(_) => FEATURE_FOLLOW,
        };
        if !has(FEATURE_FOLLOW) || !has(needs) {
            let version = &info.version;
            let what = match needs {
                _ if !has(FEATURE_FOLLOW) => format!("version {version} does not feed followers"),
                FEATURE_FOLLOW_LOG => {
                    format!("version {version} does not feed copies of one named log; upgrade it")
                }
                _ => format!(
                    "version {version} cannot start a copy at a time or a number of records before the end; upgrade it, or start at an index"
                ),
            };
            return Err(of(ErrorKind::Unsupported, what));
        }
        let theirs = from_hex(&info.log_id).ok().map(LogId);
        if let (Some(ExistingCopy { log: ours, .. }), Some(theirs)) = (copy, theirs)
            && ours != theirs
        {
            let error = match copy {
                // A server that lags behind can still have an earlier log of this name: it is asked again.
                Some(ExistingCopy { is_of_one_log: true, .. }) if super::is_named(name) => {
                    let what = format!(
                        "log {name:?} is not the log of this copy: that one was deleted and another log has its name now, or the \
                         directory holds a copy of another log"
                    );
                    return Err(of(ErrorKind::NotFound, what));
                }
                _ => super::other_log(&address, ours, theirs),
            };
            self.refuse(&address, error.clone());
            return Err(error);
        }
        Ok(Candidate { address, info })
    }

    /// Stores the servers that the answer with the newest term names.
    fn learn(&mut self, found: &[Candidate]) {
        let Some(newest) = found.iter().max_by_key(|answer| answer.info.term) else { return };
        let usable = newest.info.servers.iter().filter(|s| !self.refused.contains_key(&s.address));
        self.known = usable.map(|s| (s.address.clone(), s.leader)).collect();
    }

    /// Asks another server, preferably one that does not lead, for its last record. `fed`: the current server knows a
    /// leader. If it knows none, it may be cut off together with others, so any server is asked.
    pub(super) fn last_elsewhere(
        &self,
        server: &str,
        fed: bool,
        log: Option<LogId>,
    ) -> impl Future<Output = Option<Index>> + Send + use<> {
        // No server names followers: the given ones are asked as well.
        let others = self.usable().into_iter().filter(|address| *address != server);
        let leads = |address| fed && self.known.get(address).copied().unwrap_or_default();
        let mut others: Vec<(bool, String)> =
            others.map(|address| (leads(address), address.clone())).collect();
        fastrand::shuffle(&mut others);
        others.sort_by_key(|(last, _)| *last);
        let options = self.options.clone();
        async move {
            let servers = Servers::alone(Vec::new(), options.clone());
            for (_, address) in others {
                let Ok(mut client) = servers.client(&address) else { continue };
                let request = InfoRequest { log: options.log.clone(), allow_stale: true };
                if let Ok(Ok(info)) = timeout(options.probe_timeout, client.info(request)).await {
                    let info = info.into_inner();
                    // A server that was restarted with another log says nothing about this one.
                    let theirs = from_hex(&info.log_id).ok().map(LogId);
                    if log.is_none() || theirs == log {
                        return Some(Index(info.last));
                    }
                }
            }
            None
        }
    }

    /// Opens a separate connection.
    ///
    /// # Errors
    /// `InvalidArgument`: an invalid address or certificate.
    pub(super) fn channel(&self, server: &str) -> Result<Shown> {
        Servers::alone(Vec::new(), self.options.clone()).separate_channel(server)
    }

    /// A server's error, with its address.
    pub(super) fn error(server: &str, status: &tonic::Status) -> Error {
        let error = from_status(status);
        Error::new(error.kind(), format!("{server}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::proto::v1::Server;
    use crate::wire::protocol::FEATURE_FOLLOW_PLACES;

    /// A new copy was made of the deleted log, from a server that lagged behind, and ended as soon as that server had caught up.
    #[test]
    fn new_copy_is_of_the_log_that_the_leader_has() {
        let candidate = |&(node, log_id, leader): &(u64, &str, u64)| {
            let servers =
                (1..=3).map(|n| Server { node: n, leader: n == leader, ..Server::default() }).collect();
            let term = leader; // one that was elected later has a higher number here
            let info =
                ServerInfoResponse { node, log_id: log_id.into(), servers, term, ..Default::default() };
            Candidate { address: format!("{node}:1"), info }
        };
        let left = |found: &[(u64, &str, u64)]| {
            let mut found = found.iter().map(candidate).collect();
            leave_deleted(&mut found);
            found.into_iter().map(|candidate| candidate.info.node).collect::<Vec<_>>()
        };
        assert_eq!(left(&[(1, "old", 2), (2, "new", 2), (3, "new", 2)]), [2, 3]);
        assert_eq!(
            left(&[(1, "old", 1), (2, "new", 2), (3, "", 2)]),
            [2, 3],
            "it was cut off, and considers itself the leader"
        );
        assert_eq!(left(&[(1, "old", 2), (3, "new", 2)]), [1, 3], "nothing says which is the newer one");
    }

    /// A server that failed is avoided for a while. While one server fed it, a copy did not notice the end of that
    /// time. It stayed with that server for good, whatever the server lacked.
    #[tokio::test(start_paused = true)]
    async fn server_that_failed_long_ago_is_an_alternative() {
        let seeds = vec!["a:1".to_owned(), "b:1".to_owned()];
        let mut sources = Sources::new(seeds, String::new(), ClientOptions::default(), FEATURE_FOLLOW);
        assert!(sources.has_other("a:1") && sources.has_other("c:1"));
        sources.failed.insert("b:1".into(), Instant::now());
        assert!(!sources.has_other("a:1"));
        tokio::time::advance(AVOID).await;
        assert!(sources.has_other("a:1"));
    }

    /// Source and follower are not upgraded at the same moment.
    #[test]
    fn older_server_error_says_what_to_do() {
        let info = |features: &[&str]| Answer {
            address: "a:1".to_owned(),
            info: Ok(ServerInfoResponse {
                version: "0.0.9".into(),
                protocol_min: *PROTOCOL.start(),
                protocol_max: *PROTOCOL.end(),
                logs: vec!["default".into()],
                features: features.iter().map(|f| (*f).to_owned()).collect(),
                ..ServerInfoResponse::default()
            }),
            hopeless: false,
        };
        let sources =
            |needs| Sources::new(vec!["a:1".into()], String::new(), ClientOptions::default(), needs);
        let begun = ExistingCopy { log: LogId(1), is_of_one_log: false };
        let refused = |mut sources: Sources, features, copy| {
            sources.check_answer(info(features), copy).err().map(|e| (e.kind(), e.to_string()))
        };
        assert_eq!(refused(sources(FEATURE_FOLLOW), &[FEATURE_FOLLOW], None), None);
        assert_eq!(
            refused(sources(FEATURE_FOLLOW_PLACES), &[FEATURE_FOLLOW, FEATURE_FOLLOW_PLACES], None),
            None
        );
        assert_eq!(
            refused(sources(FEATURE_FOLLOW_PLACES), &[FEATURE_FOLLOW], Some(begun)),
            None,
            "it has begun"
        );
        let of_one = ExistingCopy { is_of_one_log: true, ..begun };
        for (needs, copy) in [(FEATURE_FOLLOW_LOG, None), (FEATURE_FOLLOW, Some(of_one))] {
            let (kind, what) =
                refused(sources(needs), &[FEATURE_FOLLOW, FEATURE_FOLLOW_PLACES], copy).unwrap();
            assert_eq!(kind, ErrorKind::Unsupported);
            assert!(what.contains("one named log; upgrade it"), "{what}");
            assert_eq!(refused(sources(needs), &[FEATURE_FOLLOW, FEATURE_FOLLOW_LOG], copy), None);
        }
        let (kind, what) = refused(sources(FEATURE_FOLLOW_PLACES), &[FEATURE_FOLLOW], None).unwrap();
        assert_eq!(kind, ErrorKind::Unsupported);
        assert!(what.contains("a:1: version 0.0.9") && what.contains("upgrade it"), "{what}");
        assert_eq!(refused(sources(FEATURE_FOLLOW), &[], None).unwrap().0, ErrorKind::Unsupported);
    }
}
