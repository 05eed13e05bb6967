//! The entries and the records of a simulated machine: as its store has them, and as its readers return them.
//!
//! Must not know: hosts, clients, what the records should be.

use super::Machine;
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::FollowFrom;
use crate::follower::source::FollowSource;
use crate::record::batch::Batch;
use crate::record::compression::Codec;
use crate::record::reference::{PayloadId, Reference};
use crate::replica::queue::proposals::Command;
use crate::replica::state::command::parse_command;
use crate::replica::state::sequencer::Owner;
use crate::store::format::block::{Batches, BlockHeader, Kind, table_of};
use crate::testing::sim::readers::range_of;
use crate::testing::sim::threads::{Records, body_at, header_at};
use crate::testing::sim::vault::PayloadPlace;
use crate::types::{EntryIndex, Index, LogId, LogNumber, Term};
use bytes::Bytes;
use std::collections::BTreeMap;

impl Machine {
    /// The entry `index`, which is committed here; `None` if it was discarded here.
    ///
    /// # Errors
    /// It cannot be read.
    pub(in crate::testing::sim) fn entry(&self, index: EntryIndex) -> Result<Option<BlockHeader>> {
        match self.dial.entry(index) {
            Some((header, _)) => Ok(Some(header)),
            None => header_at(&self.lock().node, index),
        }
    }

    /// Whether the last step has committed this entry, which may be discarded since.
    pub(in crate::testing::sim) fn has_seen(&self, index: EntryIndex) -> bool {
        self.dial.entry(index).is_some()
    }

    /// The records of an entry, with their indexes.
    ///
    /// # Errors
    /// It cannot be read, or was discarded here.
    pub(in crate::testing::sim) fn records_of(&self, header: &BlockHeader) -> Result<Records> {
        let corrupt = |why| Error::new(ErrorKind::Corrupt, why);
        let records_in = |batches: &[u8]| -> Result<Vec<Vec<u8>>> {
            let mut records = Vec::new();
            for batch in Batches::new(batches) {
                let (_, bytes) = batch.map_err(corrupt)?;
                records.extend(Batch::decode(Bytes::copy_from_slice(bytes))?.records()?);
            }
            Ok(records)
        };
        let numbered = |log, first: Index, records: Vec<Vec<u8>>| {
            records.into_iter().enumerate().map(move |(n, r)| (log, first.plus(n as u64), r))
        };
        match header.kind {
            Kind::Data => {
                let (_, body) = self.resolved(header)?;
                Ok(numbered(LogNumber::OWN, header.first, records_in(&body)?).collect())
            }
            Kind::Mixed => {
                let (header, body) = self.resolved(header)?;
                let table = table_of(&header, &body).map_err(corrupt)?;
                let mut records = Vec::new();
                for (run, place) in table.runs() {
                    records.extend(numbered(run.log, run.first, records_in(&body[place])?));
                }
                Ok(records)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// A block with the batches to which it refers.
    ///
    /// # Errors
    /// It cannot be read, or was discarded here.
    pub(in crate::testing::sim) fn resolved(&self, header: &BlockHeader) -> Result<(BlockHeader, Bytes)> {
        let body = self.body(header)?;
        match self.vault.as_ref().filter(|_| header.kind.has_records()) {
            Some(vault) => vault.resolve(self.identity.log, *header, body),
            None => Ok((*header, body)),
        }
    }

    /// The places in payload slices to which a block refers, each with the log of the batch.
    ///
    /// # Errors
    /// As [`Self::resolved`].
    pub(in crate::testing::sim) fn references_of(&self, header: &BlockHeader) -> Result<Vec<PayloadPlace>> {
        let corrupt = |why| Error::new(ErrorKind::Corrupt, why);
        let body = if header.kind.has_records() { self.body(header)? } else { Bytes::new() };
        let runs: Vec<_> = match header.kind {
            Kind::Data => vec![(LogNumber::OWN, body)],
            Kind::Mixed => {
                let table = table_of(header, &body).map_err(corrupt)?;
                table.runs().map(|(run, range)| (run.log, body.slice(range))).collect()
            }
            _ => Vec::new(),
        };
        let mut places = Vec::new();
        for (log, batches) in runs {
            for batch in Batches::new(&batches) {
                let (of, bytes) = batch.map_err(corrupt)?;
                if of.codec == Codec::Reference {
                    let Reference { slice, offset, .. } = Reference::parse(&of, bytes).map_err(corrupt)?;
                    places.push((slice, offset, log));
                }
            }
        }
        Ok(places)
    }

    /// Whether the object store has a payload slice.
    ///
    /// # Errors
    /// None.
    pub(in crate::testing::sim) fn has_payload(&self, id: PayloadId) -> Result<bool> {
        self.vault.as_ref().map_or(Ok(false), |vault| vault.has_payload(self.identity.log, id))
    }

    /// The command in a block; `None`: it holds none.
    ///
    /// # Errors
    /// It cannot be read, or was discarded here.
    pub(in crate::testing::sim) fn command_of(&self, header: &BlockHeader) -> Result<Option<Command>> {
        if header.kind != Kind::Command {
            return Ok(None);
        }
        parse_command(&self.body(header)?).map(Some).map_err(|why| Error::new(ErrorKind::Corrupt, why))
    }

    /// The body of a committed entry, also if it was committed and discarded within the last step.
    fn body(&self, header: &BlockHeader) -> Result<Bytes> {
        let seen = self.dial.entry(header.raft_index).map(|(_, body)| body);
        let body = seen.map_or_else(|| body_at(&self.lock().node, header), |body| Ok(Some(body)))?;
        body.ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, format!("entry {} is not here any more", header.raft_index))
        })
    }

    /// The body of an entry as it is sent to another replica.
    ///
    /// # Errors
    /// There is no such entry of this term.
    pub(in crate::testing::sim) fn body_of(&self, raft: EntryIndex, term: Term) -> Result<Vec<Bytes>> {
        self.lock().node.replica.body_of(raft, term)
    }

    /// One record, as any reader returns it.
    ///
    /// # Errors
    /// Those of `Log::read`.
    pub(in crate::testing::sim) fn read(&self, log: LogNumber, index: Index) -> Result<Bytes> {
        Ok(self.readers.of_log(log)?.read(index)?.data)
    }

    /// A feed of its log.
    ///
    /// # Errors
    /// Those of `Log::follow`.
    pub(in crate::testing::sim) fn follow(&self, from: FollowFrom) -> Result<FollowSource> {
        FollowSource::new(
            self.readers.group().clone(),
            Owner::Node(self.node),
            self.identity.log,
            self.options.clone(),
            from,
        )
    }

    /// A feed of one of its named logs.
    ///
    /// # Errors
    /// Those of `Log::follow`. `NotFound`: there is no such log here.
    pub(in crate::testing::sim) fn follow_log(
        &self,
        log: LogNumber,
        id: LogId,
        from: FollowFrom,
    ) -> Result<FollowSource> {
        let published = self.lock().node.published.clone();
        FollowSource::of_one_log(self.readers.of_log(log)?, published, Owner::Node(self.node), id, from)
    }

    /// The first and the last record of a log that can be read.
    ///
    /// # Errors
    /// `NotFound`: there is no such log here.
    pub(in crate::testing::sim) fn range(&self, log: LogNumber) -> Result<(Index, Index)> {
        Ok(range_of(&self.readers.of_log(log)?))
    }

    /// The logs that can be read.
    pub(in crate::testing::sim) fn logs(&self) -> Vec<LogNumber> {
        self.readers.logs()
    }

    /// The records that became readable since the last call.
    ///
    /// # Errors
    /// Those of `Reader::next_record`.
    pub(in crate::testing::sim) fn read_on(&mut self) -> Result<Records> {
        self.readers.fresh(false)
    }

    /// Every record that can be read.
    ///
    /// # Errors
    /// Those of `Reader::next_record`.
    pub(in crate::testing::sim) fn read_all(&mut self) -> Result<Records> {
        self.readers.all()
    }

    /// The excuses of readers since the last call.
    pub(in crate::testing::sim) fn take_excuses(&mut self) -> BTreeMap<&'static str, u64> {
        self.readers.faults().take_excuses()
    }
}
