//! The bytes of a command: the body of its block.
//!
//! Must not know: the effects of a command.

use crate::options::log_options::LogOptions;
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::replica::queue::proposals::{Command, LogCommand, ObjectCommand};
use crate::store::format::geometry::LOG_OPTION_BYTES;
use crate::store::format::objects::{STORED_BYTES, StoredObject};
use crate::store::segment::Base;
use crate::types::{EntryIndex, Index, LogNumber, SessionId, Term, Timestamp};

/// The size of the body of a command that the format's first version has, in bytes.
pub(crate) const COMMAND_BYTES: usize = 16;
/// The bytes before the options in the body of a command that sets options.
pub(crate) const SET_OPTIONS_BYTES: usize = 24;
/// The code of the command that sets options of a log.
const SET_OPTIONS: u64 = 11;
/// The size of the body of a command that has two operands, in bytes.
pub(crate) const LONG_COMMAND_BYTES: usize = 24;
/// The code of the command that says that an object is stored, and the size of its body in bytes.
const STORED: u64 = 8;
pub(crate) const STORED_COMMAND_BYTES: usize = 40;
/// The code of the command that cuts an object, and the size of its body in bytes.
const CUT: u64 = 10;
pub(crate) const CUT_COMMAND_BYTES: usize = 80;
/// The code of the command that moves rows of objects, and the size of its body in bytes.
const MOVE_ROWS: u64 = 12;
pub(crate) const MOVE_ROWS_COMMAND_BYTES: usize = 32;
/// The code of the command that says with which object a log begins, and the size of its body in bytes.
const BEGIN: u64 = 13;
pub(crate) const BEGIN_COMMAND_BYTES: usize = 48;

/// Encodes the body of a command block: the operation, then its operand.
pub(crate) fn encode_command(command: Command) -> Vec<u8> {
    let (op, operand) = match command {
        Command::Discard { first } => (1u64, first.0),
        Command::OpenSession { log: LogNumber::OWN, idle_max_ms } => (2, idle_max_ms),
        Command::OpenSession { log, idle_max_ms } => return long(2, idle_max_ms, log.0.into()),
        Command::CloseSession { id } => (3, id.0),
        Command::Log(LogCommand::Open { log, start }) => return long(4, log.0.into(), start.0),
        Command::OpenAfter { log, .. } | Command::PassOver { log } => return encode_command(opens(log)),
        Command::Log(LogCommand::Seal { log }) => (5, log.0.into()),
        Command::Log(LogCommand::Drop { log }) => (6, log.0.into()),
        Command::Log(LogCommand::Discard { log, first }) => return long(7, log.0.into(), first.0),
        Command::SetOptions(options) => return set_options(LogNumber::OWN, &options),
        Command::Log(LogCommand::SetOptions { log, options }) => return set_options(log, &options),
        Command::Object(ObjectCommand::Cut { number, begin, end, timestamp, first }) => {
            let words = [CUT, number, begin.raft.0, begin.term.0, begin.next.0, end.raft.0, end.term.0];
            return [&words[..], &[end.next.0, timestamp.0, first.0]]
                .concat()
                .into_iter()
                .flat_map(u64::to_le_bytes)
                .collect();
        }
        Command::Object(ObjectCommand::Stored { number, object }) => {
            let words = [STORED, number].map(u64::to_le_bytes);
            return [words.as_flattened(), &object.encode(), &[0; 4]].concat();
        }
        Command::Object(ObjectCommand::MoveRows { below, holder, offset, crc }) => {
            let words = [MOVE_ROWS, below, holder, u64::from(crc) << 32 | u64::from(offset)];
            return words.map(u64::to_le_bytes).concat();
        }
        Command::Object(ObjectCommand::Begin { number, begin, bytes }) => {
            let words = [BEGIN, number, begin.raft.0, begin.term.0, begin.next.0, bytes];
            return words.map(u64::to_le_bytes).concat();
        }
    };
    [op, operand].map(u64::to_le_bytes).concat()
}

/// The command that opens a log: of the two with which one is passed over, the first.
pub(crate) fn opens(log: LogNumber) -> Command {
    Command::Log(LogCommand::Open { log, start: Index(1) })
}

fn set_options(log: LogNumber, options: &LogOptions) -> Vec<u8> {
    let options = options.encode();
    let count = (options.len() / LOG_OPTION_BYTES) as u64;
    let words = [SET_OPTIONS, count, log.0.into()].map(u64::to_le_bytes);
    [words.as_flattened(), &options].concat()
}

fn long(op: u64, first: u64, second: u64) -> Vec<u8> {
    [op, first, second].map(u64::to_le_bytes).concat()
}

/// The reverse of [`encode_command`].
pub(crate) fn parse_command(body: &[u8]) -> Result<Command, Malformed> {
    if let Some((fixed, options)) = body.split_at_checked(SET_OPTIONS_BYTES)
        && u64_at(fixed, 0) == SET_OPTIONS
    {
        if u64_at(fixed, 8) != (options.len() / LOG_OPTION_BYTES) as u64 {
            return Err("command that sets options is of a newer format, or cut off");
        }
        let (log, options) = (log_number(u64_at(fixed, 16))?, LogOptions::decode(options)?);
        return Ok(match log.is_none() {
            true => Command::SetOptions(options),
            false => Command::Log(LogCommand::SetOptions { log, options }),
        });
    }
    if let Ok(body) = <&[u8; LONG_COMMAND_BYTES]>::try_from(body) {
        return match [0, 8, 16].map(|at| u64_at(body, at)) {
            [2, idle_max_ms, log] if log > 0 => {
                Ok(Command::OpenSession { log: log_number(log)?, idle_max_ms })
            }
            [4, log, start] => {
                Ok(Command::Log(LogCommand::Open { log: log_number(log)?, start: Index(start) }))
            }
            [7, log, first] => {
                Ok(Command::Log(LogCommand::Discard { log: log_number(log)?, first: Index(first) }))
            }
            _ => Err("command is of a newer format"),
        };
    }
    if let Ok(body) = <&[u8; STORED_COMMAND_BYTES]>::try_from(body)
        && u64_at(body, 0) == STORED
    {
        let words = body[16..].first_chunk::<STORED_BYTES>().filter(|_| body[36..] == [0; 4]);
        let object = StoredObject::parse(words.ok_or("command is of a newer format")?)?;
        return Ok(Command::Object(ObjectCommand::Stored { number: u64_at(body, 8), object }));
    }
    if let Ok(body) = <&[u8; CUT_COMMAND_BYTES]>::try_from(body)
        && u64_at(body, 0) == CUT
    {
        let base_at = |at| Base {
            raft: EntryIndex(u64_at(body, at)),
            term: Term(u64_at(body, at + 8)),
            next: Index(u64_at(body, at + 16)),
        };
        let (number, begin, end) = (u64_at(body, 8), base_at(16), base_at(40));
        let (timestamp, first) = (Timestamp(u64_at(body, 64)), Index(u64_at(body, 72)));
        return Ok(Command::Object(ObjectCommand::Cut { number, begin, end, timestamp, first }));
    }
    if let Ok(body) = <&[u8; MOVE_ROWS_COMMAND_BYTES]>::try_from(body)
        && u64_at(body, 0) == MOVE_ROWS
    {
        let (below, holder) = (u64_at(body, 8), u64_at(body, 16));
        let (offset, crc) = (u32_at(body, 24), u32_at(body, 28));
        return Ok(Command::Object(ObjectCommand::MoveRows { below, holder, offset, crc }));
    }
    if let Ok(body) = <&[u8; BEGIN_COMMAND_BYTES]>::try_from(body)
        && u64_at(body, 0) == BEGIN
    {
        let begin = Base {
            raft: EntryIndex(u64_at(body, 16)),
            term: Term(u64_at(body, 24)),
            next: Index(u64_at(body, 32)),
        };
        let (number, bytes) = (u64_at(body, 8), u64_at(body, 40));
        return Ok(Command::Object(ObjectCommand::Begin { number, begin, bytes }));
    }
    let body: &[u8; COMMAND_BYTES] = body.try_into().map_err(|_| "command has an unexpected length")?;
    let operand = u64_at(body, 8);
    match u64_at(body, 0) {
        1 => Ok(Command::Discard { first: Index(operand) }),
        2 => Ok(Command::OpenSession { log: LogNumber::OWN, idle_max_ms: operand }),
        3 => Ok(Command::CloseSession { id: SessionId(operand) }),
        5 => Ok(Command::Log(LogCommand::Seal { log: log_number(operand)? })),
        6 => Ok(Command::Log(LogCommand::Drop { log: log_number(operand)? })),
        _ => Err("command is of a newer format"),
    }
}

fn log_number(word: u64) -> Result<LogNumber, Malformed> {
    u32::try_from(word).map(LogNumber).map_err(|_| "command names an impossible log")
}
