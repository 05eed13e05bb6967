//! The state of a named log in messages.

use crate::wire::ids;
use crate::wire::proto::v1 as wire;
use chiplog::{Index, LogId, LogInfo, LogNumber, Result, Timestamp};

const NANOS_PER_MILLI: u64 = 1_000_000;

#[cfg(feature = "server")]
pub(crate) fn to_wire(log: LogInfo) -> wire::LogInfo {
    wire::LogInfo {
        name: log.name,
        number: log.number.get(),
        log_id: ids::to_hex(log.log_id.get()),
        group: log.group,
        first: log.first_index.get(),
        last: log.last_index.get(),
        bytes_appended: log.bytes_appended,
        timestamp_nanos: log.last_timestamp.get().saturating_mul(NANOS_PER_MILLI),
        sealed: log.sealed,
        elsewhere: log.elsewhere,
    }
}

/// # Errors
/// `InvalidArgument`: the id is none.
pub(crate) fn from_wire(told: wire::LogInfo) -> Result<LogInfo> {
    let mut info = LogInfo::default();
    info.log_id = LogId(ids::from_hex(&told.log_id)?);
    (info.name, info.number, info.group) = (told.name, LogNumber(told.number), told.group);
    (info.first_index, info.last_index) = (Index(told.first), Index(told.last));
    (info.bytes_appended, info.sealed) = (told.bytes_appended, told.sealed);
    info.last_timestamp = Timestamp(told.timestamp_nanos / NANOS_PER_MILLI);
    info.elsewhere = told.elsewhere;
    Ok(info)
}
