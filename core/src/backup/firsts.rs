//! First records: with which record each log of a shared group begins in a backup that is made of objects. The opening of an object does
//! not say it: the object is the same whatever was discarded later, and the objects before it may be there or not.
//!
//! Must not know: the network, which object store it is.

use crate::record::batch::Malformed;
use crate::replica::queue::proposals::{Command, LogCommand};
use crate::replica::state::command::parse_command;
use crate::replica::state::log_table::LogTable;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::segment::{Footer, Opening};
use crate::types::Index;

/// The logs of a group as an object begins, and the changes of them in it.
#[derive(Default)]
pub(super) struct LogsOfObject {
    /// The log's, or group's, first record where it begins. 0: not known.
    log_first: Index,
    /// The logs where it begins.
    begin: LogTable,
    /// The commands to logs in it.
    commands: Vec<LogCommand>,
}

impl LogsOfObject {
    /// Of an object with this opening, if anything before it can be missing, and these commands.
    ///
    /// # Errors
    /// The opening's table of logs is malformed.
    pub(super) fn new(opening: Option<&Opening>, commands: Vec<LogCommand>) -> Result<Self, Malformed> {
        let begin = opening.map(|opening| LogTable::decode(&opening.logs)).transpose()?;
        let log_first = opening.map_or(Index(0), |opening| opening.log_first);
        Ok(Self { log_first, begin: begin.unwrap_or_default(), commands })
    }

    /// The first record of the log, or of the group, as the object's opening says. 0: it is damaged.
    pub(super) fn log_first(&self) -> Index {
        self.log_first
    }

    /// Forgets the logs where it begins, of which there can be thousands.
    pub(super) fn forget_begin(&mut self) {
        self.begin = LogTable::default();
    }

    /// Reads the segment file of an object. Stops at damage, which is found when the file is read.
    pub(super) fn read(bytes: &[u8], footer: &Footer) -> Self {
        let (mut found, mut at) = (Self::default(), SEGMENT_HEADER_BYTES);
        let end = footer.data_end as usize;
        while let Some(header) = bytes.get(at..end).and_then(|rest| rest.get(..BLOCK_HEADER_BYTES))
            && let Ok(header) = BlockHeader::parse(header, footer.id)
            && let Some(body) = bytes.get(at + BLOCK_HEADER_BYTES..at + header.length as usize)
        {
            match header.kind {
                Kind::Opening => {
                    let logs = Opening::logs_in(body).and_then(LogTable::decode);
                    found.begin = logs.unwrap_or_default();
                    found.log_first = Opening::parse(body).map_or(Index(0), |opening| opening.log_first);
                }
                Kind::Command => {
                    if let Ok(Command::Log(command)) = parse_command(body) {
                        found.commands.push(command);
                    }
                }
                _ => {}
            }
            at += header.stride();
        }
        found
    }
}

/// The logs where the newest of these objects begins, if nothing before the oldest one is left. Only their first records are right. Of the
/// objects behind the oldest one, the logs where they begin are not needed.
pub(super) fn firsts<'a>(mut objects: impl DoubleEndedIterator<Item = &'a LogsOfObject>) -> LogTable {
    let newest = objects.next_back();
    let mut objects = objects.peekable();
    let mut logs = objects.peek().copied().or(newest).map(|oldest| oldest.begin.clone()).unwrap_or_default();
    logs.begin_at_ends();
    for command in objects.flat_map(|object| &object.commands) {
        // The check of the files finds an entry that does not follow the ones before.
        let _ = logs.apply(*command);
    }
    logs
}
