//! The calls of clients, their answers, and the order of both: the input of every check from outside.
//!
//! Records of a simulation are made from a number, so a history holds numbers and never bytes. [`record_of`] and
//! [`number_of`] convert between both, and [`number_of`] detects every changed byte.

use crate::disk::sim::Rng;
use crate::sync::clock::Moment;
use crate::types::{Index, LogNumber, Sequence, SessionId};
use std::fmt::Write;

/// The length of a record's number, in bytes.
const NUMBER_BYTES: usize = 8;
/// Records whose number has this bit are large.
pub(super) const LARGE: u64 = 1 << 39;

/// The record with this number: the number itself, then filler whose length and content follow from it.
///
/// ```
/// use chiplog::sim::{number_of, record_of};
/// let mut record = record_of(7);
/// assert_eq!(number_of(&record), Some(7));
/// record.push(0);
/// assert_eq!(number_of(&record), None);
/// ```
pub fn record_of(number: u64) -> Vec<u8> {
    let mut rng = Rng::new(number ^ 0x5bd1_e995);
    // At least as much filler as a checksum has: otherwise any eight bytes would be a record.
    let filler = 8 + match rng.below(64) {
        _ if number & LARGE != 0 => 500 + rng.below(3500),
        0 => rng.below(3000),
        1..8 => 0,
        _ => rng.below(120),
    };
    let mut record = Vec::with_capacity(NUMBER_BYTES + filler + NUMBER_BYTES);
    record.extend_from_slice(&number.to_le_bytes());
    while record.len() < NUMBER_BYTES + filler {
        record.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    record.truncate(NUMBER_BYTES + filler);
    record
}

/// The number of a record; `None` if it is no record of a simulation.
pub fn number_of(record: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(*record.first_chunk::<NUMBER_BYTES>()?);
    (record == record_of(number)).then_some(number)
}

/// A moment, with its position in the order of all calls and returns: two at the same moment are ordered too.
///
/// ```
/// use chiplog::sim::{Moment, When};
/// assert!(When { order: 1, at: Moment(5) } < When { order: 2, at: Moment(5) });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct When {
    /// The position in the order.
    pub order: u64,
    /// The moment.
    pub at: Moment,
}

/// A client's request.
///
/// ```
/// use chiplog::sim;
/// assert_ne!(sim::What::Info, sim::What::Append { records: vec![1], session: None });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Append these records, all or none.
    Append {
        /// Their numbers.
        records: Vec<u64>,
        /// The session and the sequence number, if it has them.
        session: Option<(SessionId, Sequence)>,
    },
    /// Read one record.
    Read {
        /// Its index.
        index: Index,
        /// Whether a barrier comes first; otherwise the replica returns its own state.
        linear: bool,
    },
    /// Read the first and the last index, after a barrier.
    Info,
    /// Discard the records below.
    Discard {
        /// The first index that is kept.
        first: Index,
    },
}

/// The result of a read.
///
/// ```
/// use chiplog::sim::Seen;
/// assert_ne!(Seen::Beyond, Seen::Discarded);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The record with this number.
    Record(u64),
    /// The index is below the first.
    Discarded,
    /// The index is beyond the last.
    Beyond,
}

/// The answer that a client got.
///
/// ```
/// assert_ne!(chiplog::sim::Reply::Refused, chiplog::sim::Reply::Nothing);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// None, or an unknown outcome: the call may have happened, may happen later, or never.
    Nothing,
    /// It did not happen and never will.
    Refused,
    /// The records are in the log; the first one's index, if it was returned.
    Appended(Option<Index>),
    /// The result of a read.
    Read(Seen),
    /// The first and the last index.
    Info(Index, Index),
    /// The discard is done.
    Discarded,
}

/// One call of a client.
///
/// ```
/// use chiplog::sim::{self, Call, Moment, Reply, When};
/// let invoked = When { order: 0, at: Moment(0) };
/// let log = chiplog::LogNumber::OWN;
/// let call = Call { client: 1, log, what: sim::What::Info, invoked, returned: None, reply: Reply::Nothing };
/// assert!(call.returned.is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The client's number.
    pub client: u32,
    /// The log: 0, or the named log of a group.
    pub log: LogNumber,
    /// The request.
    pub what: What,
    /// When the call was made.
    pub invoked: When,
    /// When it returned; `None` if it did not.
    pub returned: Option<When>,
    /// The answer.
    pub reply: Reply,
}

/// All calls of a run.
///
/// ```
/// assert_eq!(chiplog::sim::History::default().json_lines(), "");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// In the order in which they were made.
    pub calls: Vec<Call>,
    next_order: u64,
}

impl History {
    pub(super) fn invoke(&mut self, at: Moment, client: u32, log: LogNumber, what: What) -> usize {
        let invoked = self.when(at);
        self.calls.push(Call { client, log, what, invoked, returned: None, reply: Reply::Nothing });
        self.calls.len() - 1
    }

    /// Records the answer to a call. An unknown outcome is no return: the call stays open for ever.
    pub(super) fn answer(&mut self, at: Moment, call: usize, reply: Reply) {
        let returned = (reply != Reply::Nothing).then(|| self.when(at));
        self.calls[call].returned = returned;
        self.calls[call].reply = reply;
    }

    /// The calls of one log.
    ///
    /// ```
    /// let history = chiplog::sim::History::default();
    /// assert_eq!(history.of(chiplog::LogNumber(1)), history);
    /// ```
    #[must_use]
    pub fn of(&self, log: LogNumber) -> Self {
        let calls = self.calls.iter().filter(|call| call.log == log).cloned().collect();
        Self { calls, next_order: self.next_order }
    }

    fn when(&mut self, at: Moment) -> When {
        self.next_order += 1;
        When { order: self.next_order, at }
    }

    /// One JSON object per line and call, for checkers in other languages. `call` and `return` are positions in the
    /// order of the run; a call without an answer has no `return`.
    pub fn json_lines(&self) -> String {
        let mut out = String::new();
        for call in &self.calls {
            let _ = write!(out, "{{\"client\":{},\"call\":{}", call.client, call.invoked.order);
            if let Some(returned) = call.returned {
                let _ = write!(out, ",\"return\":{}", returned.order);
            }
            let _ = match &call.what {
                What::Append { records, .. } => write!(out, ",\"op\":\"append\",\"records\":{records:?}"),
                What::Read { index, linear } => {
                    write!(out, ",\"op\":\"read\",\"index\":{index},\"linear\":{linear}")
                }
                What::Info => write!(out, ",\"op\":\"info\""),
                What::Discard { first } => write!(out, ",\"op\":\"discard\",\"index\":{first}"),
            };
            let _ = match call.reply {
                Reply::Nothing => write!(out, ",\"told\":\"nothing\""),
                Reply::Refused => write!(out, ",\"told\":\"refused\""),
                Reply::Appended(None) => write!(out, ",\"told\":\"appended\""),
                Reply::Appended(Some(first)) => write!(out, ",\"told\":\"appended\",\"first\":{first}"),
                Reply::Read(Seen::Record(number)) => write!(out, ",\"told\":\"record\",\"record\":{number}"),
                Reply::Read(Seen::Discarded) => write!(out, ",\"told\":\"gone\""),
                Reply::Read(Seen::Beyond) => write!(out, ",\"told\":\"beyond\""),
                Reply::Info(first, last) => {
                    write!(out, ",\"told\":\"info\",\"first\":{first},\"last\":{last}")
                }
                Reply::Discarded => write!(out, ",\"told\":\"discarded\""),
            };
            out.push_str("}\n");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_record_has_a_number() {
        let mut lengths = std::collections::BTreeSet::new();
        for n in 0..500 {
            let mut record = record_of(n);
            lengths.insert(record.len());
            assert_eq!(number_of(&record), Some(n));
            let place = (n as usize * 7) % record.len();
            record[place] ^= 1;
            assert_eq!(number_of(&record), None, "{n}");
        }
        assert!(lengths.len() > 50 && lengths.contains(&16) && lengths.last().is_some_and(|l| *l > 1000));
    }

    #[test]
    fn calls_without_an_answer_stay_open() {
        let mut history = History::default();
        let append =
            history.invoke(Moment(1), 3, LogNumber::OWN, What::Append { records: vec![8, 9], session: None });
        let read = history.invoke(Moment(1), 4, LogNumber::OWN, What::Read { index: Index(2), linear: true });
        history.answer(Moment(2), read, Reply::Read(Seen::Record(9)));
        history.answer(Moment(9), append, Reply::Nothing);
        assert_eq!(
            history.json_lines(),
            "{\"client\":3,\"call\":1,\"op\":\"append\",\"records\":[8, 9],\"told\":\"nothing\"}\n\
             {\"client\":4,\"call\":2,\"return\":3,\"op\":\"read\",\"index\":2,\"linear\":true,\"told\":\"record\",\"record\":9}\n"
        );
    }
}
