//! Judge of names: whether the answers to calls are those of one catalogue.
//!
//! The catalogue is what the committed records of the system log say. A call is right if its answer was true at some time between its
//! beginning and its end:
//! - a log that was created or found had that name then; one creation at most is acknowledged with it;
//! - a name that exists had a log then, and one that was not found had none;
//! - a creation that was refused left nothing: its name, which no other call uses, has no log, then or later.
//!
//! Must not know: how calls are carried out.

use super::calls::{Answer, Call};
use crate::api::catalogue::{Catalogue, CatalogueRecord};
use crate::disk::sim::Rng;
use crate::error::ErrorKind;
use crate::sync::clock::Moment;
use crate::testing::sim::oracle::Check;
use crate::types::{Index, LogId, LogNumber};
use std::collections::{BTreeMap, BTreeSet};

/// The wish of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Create(String),
    /// The first half of a creation.
    Register(String),
    Find(String),
    Delete(String),
}

/// The catalogue over time.
#[derive(Debug, Default)]
pub(super) struct Judge {
    catalogue: Catalogue,
    /// The logs of each name, each from a time on.
    names: BTreeMap<String, Vec<(Moment, Option<LogId>)>>,
    /// The logs of creations that were acknowledged.
    created: BTreeSet<LogId>,
    /// Names that only one call uses, of creations that were refused.
    refused: BTreeSet<String>,
    /// Names that one creation uses.
    own: BTreeSet<String>,
    answers: u64,
}

impl Judge {
    /// The next record of the system log that it needs.
    pub(super) fn next(&self) -> Index {
        self.catalogue.next()
    }

    /// How many calls were answered.
    pub(super) fn answers(&self) -> u64 {
        self.answers
    }

    /// These records of the system log are committed.
    pub(super) fn learn<'a>(
        &mut self,
        now: Moment,
        records: impl Iterator<Item = (Index, &'a [u8])>,
    ) -> Check {
        for (index, record) in records {
            let record = CatalogueRecord::parse(record).map_err(|why| format!("record {index}: {why}"))?;
            let name = match &record {
                CatalogueRecord::Create { name, .. } => Some(name.clone()),
                CatalogueRecord::Delete { number, .. } => {
                    self.catalogue.by_number(*number).map(str::to_owned)
                }
                _ => None,
            };
            self.catalogue.apply(record);
            let Some(name) = name else { continue };
            let id = self.catalogue.get(&name).map(|entry| entry.id);
            let states = self.names.entry(name).or_default();
            if states.last().and_then(|(_, id)| *id) != id {
                states.push((now, id));
            }
        }
        Ok(())
    }

    /// The next wish of a program.
    pub(super) fn wants(&self, rng: &mut Rng, attempt: u64) -> Wanted {
        let shared = ["a", "b"][rng.below(2)].to_owned();
        let existing = self.catalogue.after("", "").map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
        let any =
            rng.pick(&existing).filter(|_| rng.permille(500)).cloned().unwrap_or_else(|| shared.clone());
        match rng.below(1000) {
            0..350 => Wanted::Create(shared),
            350..500 => Wanted::Create(format!("own-{attempt}")),
            500..600 => Wanted::Register(shared),
            600..650 => Wanted::Register(format!("own-{attempt}")),
            650..800 => Wanted::Find(any),
            _ => Wanted::Delete(any),
        }
    }

    /// A call begins.
    pub(super) fn begins(&mut self, wanted: &Wanted) {
        if let Wanted::Create(name) | Wanted::Register(name) = wanted
            && name.starts_with("own-")
        {
            self.own.insert(name.clone());
        }
    }

    /// A call was answered. `time`: when it began, and now.
    pub(super) fn answered(&mut self, call: Call, answer: Answer, time: (Moment, Moment)) -> Check {
        let (Call::OfProgram(wanted, _), Answer::OfProgram(result, refused)) = (call, answer) else {
            return Ok(());
        };
        self.answers += 1;
        let (Wanted::Create(name) | Wanted::Register(name) | Wanted::Find(name) | Wanted::Delete(name)) =
            &wanted;
        let states = self.states(name, time);
        let wrong =
            |why: String| Err(format!("{wanted:?} was answered {why}; meanwhile the name had {states:?}"));
        let creates = matches!(wanted, Wanted::Create(_) | Wanted::Register(_));
        let kind = match result {
            Ok(_) if matches!(wanted, Wanted::Delete(_)) => {
                let is_right = states.contains(&None) && states.iter().any(Option::is_some);
                return if is_right { Ok(()) } else { wrong("with success".to_owned()) };
            }
            Ok(id) if !states.contains(&Some(id)) => return wrong(format!("with log {id}")),
            Ok(id) if creates && !self.created.insert(id) => {
                return wrong(format!("with log {id}, which another creation has got"));
            }
            Ok(id) => {
                return match refused {
                    Some(error) if !self.is_gone(name, id) => {
                        wrong(format!("with log {id}, which takes no append: {error}"))
                    }
                    _ => Ok(()),
                };
            }
            Err(error) => error.kind(),
        };
        let is_own = self.own.contains(name);
        match kind {
            ErrorKind::AlreadyExists if creates && !is_own && states.iter().any(Option::is_some) => Ok(()),
            ErrorKind::NotFound if creates && is_own && !states.iter().any(Option::is_some) => {
                wrong(format!("with {kind:?}"))
            }
            ErrorKind::NotFound if states.contains(&None) => Ok(()),
            ErrorKind::AlreadyExists | ErrorKind::NotFound => wrong(format!("with {kind:?}")),
            // A refusal: nothing of it has happened.
            ErrorKind::NotLeader | ErrorKind::Busy | ErrorKind::Full | ErrorKind::InvalidArgument
                if creates && is_own =>
            {
                self.refused.insert(name.clone());
                self.is_refused(name)
            }
            _ => Ok(()),
        }
    }

    /// A call will not be answered: its process has ended.
    pub(super) fn lost(&mut self, _: Call) {
        self.answers += 1;
    }

    /// Nothing happens any more.
    pub(super) fn ends(&self) -> Check {
        self.refused.iter().try_for_each(|name| self.is_refused(name))
    }

    fn is_refused(&self, name: &str) -> Check {
        match self.names.get(name) {
            None => Ok(()),
            Some(states) => Err(format!("the creation of {name:?} was refused, and the name had {states:?}")),
        }
    }

    /// Whether a name has had another log, or none, since it had this one.
    fn is_gone(&self, name: &str, id: LogId) -> bool {
        self.names.get(name).and_then(|states| states.last()).is_none_or(|(_, last)| *last != Some(id))
    }

    /// The logs that a name had within a time, with that at its beginning.
    fn states(&self, name: &str, (from, to): (Moment, Moment)) -> Vec<Option<LogId>> {
        let none = Vec::new();
        let all = self.names.get(name).unwrap_or(&none);
        let before = all.iter().rev().find(|(at, _)| *at <= from).and_then(|(_, id)| *id);
        let within = all.iter().filter(|(at, _)| *at > from && *at <= to).map(|(_, id)| *id);
        std::iter::once(before).chain(within).collect()
    }

    /// The numbers of the logs.
    pub(super) fn numbers(&self) -> BTreeSet<LogNumber> {
        self.catalogue.after("", "").map(|(_, entry)| entry.number).collect()
    }

    /// The names and ids of the logs, by name.
    pub(super) fn listed(&self) -> Vec<(String, LogId)> {
        self.catalogue.after("", "").map(|(name, entry)| (name.to_owned(), entry.id)).collect()
    }
}
