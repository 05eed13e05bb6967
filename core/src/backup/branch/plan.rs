//! Plan: which objects a branch is made of.
//!
//! Must not know: the network, which object store it is.

use super::object::corrupt;
use crate::backup::downloads::{contradiction, is_discarded_before};
use crate::backup::found::made_of;
use crate::backup::pin::{Pin, first_with, no_pin};
use crate::backup::restore::RestoreTo;
use crate::backup::stored::{Objects, footer_at, lineage_of, opening_at};
use crate::error::{Error, ErrorKind, Result};
use crate::store::format::objects::{self, ANCESTORS_MAX, Ancestor};
use crate::store::format::older_rows::{OlderRows, RowsRun};
use crate::store::format::segment::{Base, Opening};
use crate::store::objects::deletion::newest_begin;
use crate::store::objects::names::Lineage;
use crate::store::objects::pins;
use crate::types::{LogId, Timestamp};
use crate::vault::{ObjectInfo, Vault};

/// The objects of which a branch is made.
pub(super) struct Plan {
    /// The owners of the objects.
    pub(super) lineage: Lineage,
    /// The objects that the branch reads from there.
    pub(super) below: Objects,
    /// The object of which it copies a part.
    pub(super) last: (u64, ObjectInfo),
    /// The newest object that is known: its opening may say more of the others.
    pub(super) newest: (u64, ObjectInfo),
    /// Where the oldest object begins, and where the part begins.
    pub(super) begin: Base,
    pub(super) base: Base,
    /// The pin from which it is made.
    pub(super) pin: Option<Pin>,
    /// All records in the objects are discarded: the last one says only how far the log was.
    pub(super) is_discarded: bool,
}

impl Plan {
    /// The runs of older rows of the branch: those that the log had where the branch's last part begins, from the branch's first object on.
    pub(super) fn runs(&self, opening: &Opening) -> Result<Vec<RowsRun>> {
        if opening.objects.is_empty() {
            return Ok(Vec::new());
        }
        let (table, _) = objects::decode(&opening.objects).map_err(|why| corrupt(&self.last.1, why))?;
        let from = self.below.first().map_or(0, |(number, _)| *number);
        // The objects before it are discarded since, and perhaps deleted.
        let left = table.runs().filter(|run| run.rows.below > from).map(|run| {
            let of_run =
                self.below.iter().filter(|(number, _)| (run.number..run.rows.below).contains(number));
            let rows = OlderRows { bytes: of_run.map(|(_, object)| object.bytes).sum(), ..run.rows };
            match run.number < from {
                true => RowsRun { number: from, begin: self.begin, before: Timestamp(0), rows },
                false => RowsRun { rows, ..run },
            }
        });
        Ok(left.collect())
    }

    /// Finds what a branch of `log` with this end is made of; of the objects under this pin, if there is one. `of_cluster`: the log can be
    /// shared by named logs.
    ///
    /// # Errors
    /// Those of [`super::Branch::make`].
    pub(super) fn find(
        vault: &dyn Vault,
        log: LogId,
        to: RestoreTo,
        pin: Option<&str>,
        of_cluster: bool,
    ) -> Result<Self> {
        let mut is_discarded = false;
        let (lineage, objects, pin) = match pin {
            None => {
                let (lineage, objects) = made_of(vault, log)?;
                if let Some((newest, _)) = objects.last() {
                    is_discarded = newest_begin(vault, log)?.is_some_and(|begin| begin > *newest);
                }
                if is_discarded && (!of_cluster || matches!(to, RestoreTo::Index(_))) {
                    let what = format!("all records of log {:032x} that are in objects are discarded", log.0);
                    return Err(Error::new(ErrorKind::Discarded, what));
                }
                (lineage, objects, None)
            }
            Some(name) => {
                pins::check_name(name)?;
                let pin = pins::read(vault, log, name)?.ok_or_else(|| no_pin(log, name))?;
                let lineage = lineage_of(vault, log)?;
                let objects = pin.objects(vault, &lineage)?;
                (lineage, objects, Some(pin))
            }
        };
        let footer = |at: usize| footer_at(vault, lineage.owner(objects[at].0), &objects[at]);
        let newest = objects.len() - 1;
        let at = match to {
            RestoreTo::End => newest,
            _ if is_discarded => newest,
            RestoreTo::Index(to) => first_with(objects.len(), |at| Ok(footer(at)?.next > to))?.ok_or_else(|| {
                let what = format!(
                    "record {to} of log {:032x} is in no object{}: `chiplog tier backup` puts what servers have confirmed into objects",
                    log.0,
                    if pin.is_some() { " under this pin" } else { " yet" }
                );
                Error::new(ErrorKind::OutOfRange, what)
            })?,
            RestoreTo::Timestamp(time) => {
                first_with(objects.len(), |at| Ok(footer(at)?.last_timestamp > time))?.unwrap_or(newest)
            }
        };
        let base = Base::before(&footer(at)?);
        // An opening that knows of no objects knows of no discarded ones either.
        let opening = opening_at(vault, lineage.owner(objects[at].0), &objects[at])?;
        if !opening.logs.is_empty() && !of_cluster {
            return Err(is_shared(log));
        }
        let from = match opening.objects.is_empty() {
            true => 0,
            false => objects::decode(&opening.objects).map_err(|why| corrupt(&objects[at].1, why))?.0.number,
        };
        // Objects that do not lead to it are discarded.
        let from = match at > 0 && !is_discarded && Base::behind(&footer(at - 1)?) != base {
            true => {
                let begin = (objects[at].0, base.next, opening.log_first);
                if !is_discarded_before(vault, log, pin.as_ref().map(|pin| pin.first_object), begin)? {
                    return Err(contradiction(&objects[at - 1].1.name, &objects[at].1.name));
                }
                objects[at].0
            }
            false => from,
        };
        let oldest = match is_discarded {
            true => at,
            false => objects[..at].partition_point(|(number, _)| *number < from),
        };
        let begin = Base::before(&footer(oldest)?);
        let plan = Self {
            below: objects[oldest..at].to_vec(),
            last: objects[at].clone(),
            newest: objects[newest].clone(),
            begin,
            base,
            pin,
            lineage,
            is_discarded,
        };
        if plan.ancestors().len() > ANCESTORS_MAX {
            let what = format!(
                "log {:032x} is a branch of a branch, and so on, {ANCESTORS_MAX} times, and no branch can be made of it: make a copy with \
                 `chiplog tier fetch` and `chiplog restore`",
                log.0
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        Ok(plan)
    }

    /// The logs of whose objects the branch reads some.
    pub(super) fn ancestors(&self) -> Vec<Ancestor> {
        let Some((oldest, _)) = self.below.first() else { return Vec::new() };
        let end = self.last.0;
        let own = Ancestor { log: self.lineage.log, below: u64::MAX };
        let all = self.lineage.ancestors.iter().copied().chain([own]);
        let mut needed: Vec<Ancestor> = Vec::new();
        for Ancestor { log, below } in all.filter(|ancestor| ancestor.below > *oldest) {
            if needed.last().is_none_or(|last| last.below < end) {
                needed.push(Ancestor { log, below: below.min(end) });
            }
        }
        needed
    }
}

/// The error of a log that named logs share.
pub(super) fn is_shared(log: LogId) -> Error {
    let what = format!(
        "log {:032x} is shared by named logs: a branch of it is one of its whole cluster, with the catalogue of their names",
        log.0
    );
    Error::new(ErrorKind::Unsupported, what)
}
