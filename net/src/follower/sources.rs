//! Sources: which server a follower is fed by. Any that has the log will do; nobody has to lead.
//!
//! ```text
//! asked about themselves: those that were given, and those that these named when they were asked before
//!   another log, or too old a program:  not asked for the log
//!   else, best first:  has what comes next | did not fail lately | in the zone that was asked for | does not lead | by chance
//! ```
//!
//! Invariants:
//! - Servers of another log are never learnt from.
//! - A question's connection ends with the question: the servers that a follower is not fed by have nothing to do for it.
//!
//! Must not know: what is sent, files.

use crate::client::ClientOptions;
use crate::client::Shown;
use crate::client::cluster::discovery::{Answer, Servers};
use crate::wire::ids::from_hex;
use crate::wire::proto::v1::{InfoRequest, ServerInfoResponse};
use crate::wire::protocol::{FEATURE_FOLLOW, PROTOCOL};
use crate::wire::status::from_status;
use chiplog::{Error, ErrorKind, Index, LogId, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

/// The first good answer does not decide alone: others that come within this time are heard too, so that not all followers
/// hang on the quickest server.
const GRACE: Duration = Duration::from_millis(30);

/// A server that has failed is not chosen for this time, if there is another.
const AVOID: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Sources {
    seeds: Vec<String>,
    zone: String,
    options: ClientOptions,
    /// What a server has to be capable of for a copy to begin.
    needs: &'static str,
    /// As the servers named each other when they were last asked: where each is, and whether it led.
    known: BTreeMap<String, bool>,
    /// Failed lately.
    failed: BTreeMap<String, Instant>,
    /// Will not do, ever; and why.
    refused: BTreeMap<String, Error>,
    /// Have discarded what comes next here. Asked again when nobody else answers.
    without: BTreeSet<String>,
}

/// A server that can be asked for the log.
struct Usable {
    address: String,
    told: ServerInfoResponse,
}

type Rank = [bool; 5];

/// The rank of a server with nothing against it.
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
        }
    }

    /// It did not do what it should: another one next time, if there is one.
    pub(super) fn failed(&mut self, server: &str) {
        self.failed.insert(server.to_owned(), Instant::now());
    }

    /// It does what it should.
    pub(super) fn works(&mut self, server: &str) {
        self.failed.remove(server);
    }

    /// It has discarded what comes next here. Whether all who answered have: then it is gone.
    pub(super) fn is_gone(&mut self, server: &str) -> bool {
        let known = !self.without.insert(server.to_owned());
        known || self.usable().len() == 1
    }

    /// What comes next is another record now.
    pub(super) fn came(&mut self) {
        self.without.clear();
    }

    /// Whether there is a server, other than this one, that has not failed lately.
    pub(super) fn has_other(&self, server: &str) -> bool {
        let failed = |other: &String| self.failed.get(other).is_some_and(|since| since.elapsed() < AVOID);
        self.usable().into_iter().any(|other| other != server && !failed(other))
    }

    fn usable(&self) -> BTreeSet<&String> {
        self.seeds.iter().chain(self.known.keys()).filter(|s| !self.refused.contains_key(*s)).collect()
    }

    /// It has something else: it is not asked again.
    pub(super) fn refuse(&mut self, server: &str, error: Error) {
        self.known.remove(server);
        self.refused.insert(server.to_owned(), error);
    }

    /// Some: all servers have something else; what the last of those that were given said.
    pub(super) fn nobody_left(&self) -> Option<Error> {
        if !self.usable().is_empty() {
            return None;
        }
        self.seeds.iter().rev().find_map(|seed| self.refused.get(seed).cloned())
    }

    /// Asks all servers about themselves, and chooses one. `log`: the one that is held already.
    ///
    /// # Errors
    /// `Unavailable` and the like: nobody answered; why they refused, when nobody is left to be asked.
    pub(super) async fn choose(&mut self, log: Option<LogId>) -> Result<String> {
        self.failed.retain(|_, since| since.elapsed() < AVOID);
        let servers = Servers::new(self.seeds.clone(), self.options.clone());
        let mut asked: BTreeSet<String> = self.usable().into_iter().cloned().collect();
        let mut answers = JoinSet::new();
        servers.ask_each(asked.iter().cloned(), &mut answers);
        let (mut found, mut failed, mut until) = (Vec::new(), None, None);
        loop {
            let next = answers.join_next();
            let answer = match until {
                None => next.await,
                Some(until) => timeout_at(until, next).await.unwrap_or(None),
            };
            let Some(answer) = answer else { break };
            let Ok(answer) = answer else { continue };
            match self.hear(answer, log) {
                Ok(answer) => {
                    // Whom it names is asked as well.
                    let named = answer.told.servers.iter().map(|s| s.address.clone());
                    let new: Vec<_> = named.filter(|a| !self.refused.contains_key(a)).collect();
                    let new = new.into_iter().filter(|a| asked.insert(a.clone()));
                    servers.ask_each(new.collect::<Vec<_>>(), &mut answers);
                    if self.rank(&answer, log.is_none()) == BEST {
                        until.get_or_insert_with(|| Instant::now() + GRACE);
                    }
                    found.push(answer);
                }
                Err(error) => failed = Some(error),
            }
        }
        self.learn(&found);
        fastrand::shuffle(&mut found);
        let best = found.into_iter().min_by_key(|answer| self.rank(answer, log.is_none()));
        best.map(|answer| answer.address).ok_or_else(|| {
            let nobody = || Error::new(ErrorKind::Unavailable, "no server answers");
            self.nobody_left().or(failed).unwrap_or_else(nobody)
        })
    }

    /// The lower the better: lacks what comes next, failed lately, is a copy that may have less than the log where a `new`
    /// one is to begin, is of another zone, leads.
    fn rank(&self, Usable { address, told }: &Usable, new: bool) -> Rank {
        let far = !self.zone.is_empty() && told.zone != self.zone;
        let leads = told.servers.iter().any(|s| s.leader && s.node == told.node);
        let failed = self.failed.contains_key(address);
        [self.without.contains(address), failed, new && told.follows, far, leads]
    }

    /// What a server said, if it can be used.
    fn hear(&mut self, answer: Answer, log: Option<LogId>) -> Result<Usable> {
        let Answer { address, told, .. } = answer;
        let of = |kind, what: String| Error::new(kind, format!("{address}: {what}"));
        let told = told.map_err(|e| of(e.kind(), e.to_string()))?;
        if told.protocol_min > *PROTOCOL.end() || told.protocol_max < *PROTOCOL.start() {
            let what = format!("it supports only revisions {} to {}", told.protocol_min, told.protocol_max);
            return Err(of(ErrorKind::Unsupported, what));
        }
        if told.logs.is_empty() {
            return Err(of(ErrorKind::Unavailable, "it is not part of a cluster yet".into()));
        }
        let has = |feature: &str| told.features.iter().any(|f| f == feature);
        if !has(FEATURE_FOLLOW) {
            let what = format!("version {} does not feed followers", told.version);
            return Err(of(ErrorKind::Unsupported, what));
        }
        if log.is_none() && !has(self.needs) {
            let what = format!(
                "version {} cannot start a copy at a time or a number of records before the end; upgrade it, or start at an index",
                told.version
            );
            return Err(of(ErrorKind::Unsupported, what));
        }
        let theirs = from_hex(&told.log_id).ok().map(LogId);
        if let (Some(ours), Some(theirs)) = (log, theirs)
            && ours != theirs
        {
            let error = super::other_log(&address, ours, theirs);
            self.refuse(&address, error.clone());
            return Err(error);
        }
        Ok(Usable { address, told })
    }

    /// Keeps who there is, as the one says whose election is the newest.
    fn learn(&mut self, found: &[Usable]) {
        let Some(newest) = found.iter().max_by_key(|answer| answer.told.term) else { return };
        let usable = newest.told.servers.iter().filter(|s| !self.refused.contains_key(&s.address));
        self.known = usable.map(|s| (s.address.clone(), s.leader)).collect();
    }

    /// How far another server is than the one that feeds the follower: one that does not lead, if one answers. `fed`:
    /// that one knows a leader; one that knows none may be cut off together with others, so anybody is asked then.
    pub(super) fn last_elsewhere(
        &self,
        server: &str,
        fed: bool,
        log: Option<LogId>,
    ) -> impl Future<Output = Option<Index>> + Send + use<> {
        // Copies are named by nobody: those that were given are asked as well.
        let others = self.usable().into_iter().filter(|address| *address != server);
        let leads = |address| fed && self.known.get(address).copied().unwrap_or_default();
        let mut others: Vec<(bool, String)> =
            others.map(|address| (leads(address), address.clone())).collect();
        fastrand::shuffle(&mut others);
        others.sort_by_key(|(last, _)| *last);
        let options = self.options.clone();
        async move {
            let servers = Servers::new(Vec::new(), options.clone());
            for (_, address) in others {
                let Ok(mut client) = servers.client(&address) else { continue };
                let request = InfoRequest { log: options.log.clone(), allow_stale: true };
                if let Ok(Ok(info)) = timeout(options.probe_timeout, client.info(request)).await {
                    let info = info.into_inner();
                    // One that came up with another log says nothing of this one.
                    let theirs = from_hex(&info.log_id).ok().map(LogId);
                    if log.is_none() || theirs == log {
                        return Some(Index(info.last));
                    }
                }
            }
            None
        }
    }

    /// A connection of its own.
    ///
    /// # Errors
    /// `InvalidArgument`: no address, or no certificates.
    pub(super) fn channel(&self, server: &str) -> Result<Shown> {
        Servers::new(Vec::new(), self.options.clone()).channel(server)
    }

    /// A server's refusal, as an error that names it.
    pub(super) fn error(server: &str, status: &tonic::Status) -> Error {
        let error = from_status(status);
        Error::new(error.kind(), format!("{server}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::protocol::FEATURE_FOLLOW_PLACES;

    /// A server is avoided for a while after it has failed. While one server fed it a copy did not notice that the while
    /// was over, and stayed with that one for good, whatever it lacked.
    #[tokio::test(start_paused = true)]
    async fn what_failed_long_ago_is_another_server() {
        let seeds = vec!["a:1".to_owned(), "b:1".to_owned()];
        let mut sources = Sources::new(seeds, String::new(), ClientOptions::default(), FEATURE_FOLLOW);
        assert!(sources.has_other("a:1") && sources.has_other("c:1"));
        sources.failed.insert("b:1".into(), Instant::now());
        assert!(!sources.has_other("a:1"));
        tokio::time::advance(AVOID).await;
        assert!(sources.has_other("a:1"));
    }

    /// Source and follower are not upgraded in one moment.
    #[test]
    fn a_server_that_does_not_know_a_place_to_begin_at_says_what_to_do() {
        let told = |features: &[&str]| Answer {
            address: "a:1".to_owned(),
            told: Ok(ServerInfoResponse {
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
        let refused = |mut sources: Sources, features, log| {
            sources.hear(told(features), log).err().map(|e| (e.kind(), e.to_string()))
        };
        assert_eq!(refused(sources(FEATURE_FOLLOW), &[FEATURE_FOLLOW], None), None);
        assert_eq!(
            refused(sources(FEATURE_FOLLOW_PLACES), &[FEATURE_FOLLOW, FEATURE_FOLLOW_PLACES], None),
            None
        );
        assert_eq!(
            refused(sources(FEATURE_FOLLOW_PLACES), &[FEATURE_FOLLOW], Some(LogId(1))),
            None,
            "it has begun"
        );
        let (kind, what) = refused(sources(FEATURE_FOLLOW_PLACES), &[FEATURE_FOLLOW], None).unwrap();
        assert_eq!(kind, ErrorKind::Unsupported);
        assert!(what.contains("a:1: version 0.0.9") && what.contains("upgrade it"), "{what}");
        assert_eq!(refused(sources(FEATURE_FOLLOW), &[], None).unwrap().0, ErrorKind::Unsupported);
    }
}
