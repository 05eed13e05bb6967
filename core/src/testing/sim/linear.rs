//! Checks whether a history can have come from one log that does one thing at a time: exactly, and in one pass.
//!
//! Deciding that is hard in general, because the order has to be guessed. Here it is known: records have indexes. The
//! answers order all calls: an append is at its records, a read of the log's end is at the end that it returned. A
//! history is good if no call returned before the invocation of another one that comes earlier in this order. So it
//! is enough to go through invocations and returns by time and to keep two numbers:
//!
//! - *seen*: the last index that any call had shown when it returned. A later append is after it, and a later read of
//!   the end returns at least that.
//! - *gone*: the largest index below which a discard that has returned has discarded. A later read must not find a
//!   record below it.
//!
//! A call of unknown outcome may have happened, once, or not. The log's contents show which.
//!
//! Must not know: how the history came about.

use super::history::{Call, History, Reply, Seen, What, When};
use crate::types::{Index, Sequence, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// The contradiction, with the numbers of the calls.
type Wrong = String;

/// Checks a history against all contents that the log ever had: `log` has the number of the record at each index that
/// was ever committed, with discarded ones.
///
/// # Errors
/// The first contradiction, in words.
///
/// ```
/// use chiplog::sim::{History, check_history};
/// assert_eq!(check_history(&History::default(), &Default::default()), Ok(()));
/// ```
pub fn check(history: &History, log: &BTreeMap<Index, u64>) -> Result<(), Wrong> {
    let place = places(log)?;
    let appended: BTreeSet<u64> = history.calls.iter().flat_map(records_of).copied().collect();
    if let Some((index, number)) = log.iter().find(|(_, number)| !appended.contains(number)) {
        return Err(format!("record {number}, at {index}, was never appended"));
    }
    let appends = placed(history, log, &place)?;
    order_of_sessions(history, &appends)?;
    walk(history, log, &appends)
}

fn records_of(call: &Call) -> &[u64] {
    match &call.what {
        What::Append { records, .. } => records,
        _ => &[],
    }
}

/// The index of each record, which must be in the log once at most.
fn places(log: &BTreeMap<Index, u64>) -> Result<BTreeMap<u64, Index>, Wrong> {
    let mut place = BTreeMap::new();
    for (index, number) in log {
        if let Some(other) = place.insert(*number, *index) {
            return Err(format!("record {number} is at {other} and again at {index}"));
        }
    }
    Ok(place)
}

/// The indexes of the records of one append.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: Index,
    last: Index,
}

/// The indexes of each append, by call; `None` if it did not happen.
fn placed(
    history: &History,
    log: &BTreeMap<Index, u64>,
    place: &BTreeMap<u64, Index>,
) -> Result<Vec<Option<Span>>, Wrong> {
    let mut spans = Vec::with_capacity(history.calls.len());
    for (n, call) in history.calls.iter().enumerate() {
        let What::Append { records, .. } = &call.what else {
            spans.push(None);
            continue;
        };
        let Some(first) = records.first().and_then(|r| place.get(r)).copied() else {
            if let Some(r) = records.iter().find(|r| place.contains_key(r)) {
                return Err(format!(
                    "call {n}: record {r} is in the log without the records before it in its batch"
                ));
            }
            if let Reply::Appended(_) = call.reply {
                return Err(format!(
                    "call {n}: records {records:?} were acknowledged and are not in the log"
                ));
            }
            spans.push(None);
            continue;
        };
        for (offset, record) in records.iter().enumerate() {
            let index = first.plus(offset as u64);
            if log.get(&index) != Some(record) {
                return Err(format!(
                    "call {n}: record {record} of a batch from {first} on is not at {index}"
                ));
            }
        }
        match call.reply {
            Reply::Refused => {
                return Err(format!("call {n}: refused, but records {records:?} are in the log at {first}"));
            }
            Reply::Appended(Some(reply)) if reply != first => {
                return Err(format!("call {n}: returned index {reply}, but its records are at {first}"));
            }
            _ => {}
        }
        spans.push(Some(Span { first, last: first.plus(records.len() as u64).previous() }));
    }
    Ok(spans)
}

/// Checks that appends of a session are in the order of their numbers.
fn order_of_sessions(history: &History, appends: &[Option<Span>]) -> Result<(), Wrong> {
    let mut sessions: BTreeMap<SessionId, BTreeMap<Sequence, (usize, Span)>> = BTreeMap::new();
    for (n, call) in history.calls.iter().enumerate() {
        if let (What::Append { session: Some((id, sequence)), .. }, Some(span)) = (&call.what, appends[n])
            && let Some((other, _)) = sessions.entry(*id).or_default().insert(*sequence, (n, span))
        {
            return Err(format!(
                "calls {other} and {n}: two appends under sequence {sequence} of session {id}"
            ));
        }
    }
    for (id, numbers) in &sessions {
        for ((before, (a, x)), (after, (b, y))) in numbers.iter().zip(numbers.iter().skip(1)) {
            if x.last >= y.first {
                return Err(format!(
                    "calls {a} and {b}: sequence {before} of session {id} is at {}, and {after} at {}",
                    x.first, y.first
                ));
            }
            if after.0 != before.0 + 1 {
                return Err(format!(
                    "session {id}: sequence {after} is in the log, but not {}",
                    before.0 + 1
                ));
            }
        }
    }
    Ok(())
}

/// The two numbers, as far as calls have returned.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    /// The last index.
    seen: Index,
    /// Every record below this is gone.
    gone: Index,
}

/// The end of a batch, and the latest invocation of the appends up to it.
#[derive(Clone, Copy, Debug)]
struct Batch {
    last: Index,
    newest: When,
}

/// All batches in the log, by their first index.
fn batches(history: &History, appends: &[Option<Span>]) -> BTreeMap<Index, Batch> {
    let placed = history.calls.iter().zip(appends).filter_map(|(call, span)| span.map(|s| (call, s)));
    let mut batches: BTreeMap<Index, Batch> =
        placed.map(|(call, s)| (s.first, Batch { last: s.last, newest: call.invoked })).collect();
    let mut newest = None;
    for batch in batches.values_mut() {
        batch.newest = newest.map_or(batch.newest, |n: When| n.max(batch.newest));
        newest = Some(batch.newest);
    }
    batches
}

/// The facts that an answer is checked against.
struct Known<'a> {
    log: &'a BTreeMap<Index, u64>,
    batches: &'a BTreeMap<Index, Batch>,
    /// Records whose append was invoked.
    proposed: &'a BTreeSet<u64>,
    /// The largest index of a discard that was invoked.
    asked: Index,
}

fn walk(history: &History, log: &BTreeMap<Index, u64>, appends: &[Option<Span>]) -> Result<(), Wrong> {
    let batches = batches(history, appends);
    let mut moments: Vec<(When, usize, bool)> = Vec::with_capacity(2 * history.calls.len());
    for (n, call) in history.calls.iter().enumerate() {
        moments.push((call.invoked, n, false));
        moments.extend(call.returned.map(|r| (r, n, true)));
    }
    moments.sort_unstable();
    let mut shown = Shown::default();
    let mut asked = Index(1);
    let mut proposed = BTreeSet::new();
    let mut when_invoked = vec![Shown::default(); history.calls.len()];
    for (_, n, is_return) in moments {
        let call = &history.calls[n];
        if !is_return {
            when_invoked[n] = shown;
            match &call.what {
                What::Discard { first } => asked = asked.max(*first),
                What::Append { records, .. } => proposed.extend(records.iter().copied()),
                _ => {}
            }
            if let Some(span) = appends[n]
                && span.first <= shown.seen
            {
                return Err(format!(
                    "call {n}: appended at {}, although index {} had been seen before the call",
                    span.first, shown.seen
                ));
            }
            continue;
        }
        let known = Known { log, batches: &batches, proposed: &proposed, asked };
        look(n, call, when_invoked[n], &known)?;
        shown.learn(call, appends[n]);
    }
    Ok(())
}

impl Shown {
    fn learn(&mut self, call: &Call, append: Option<Span>) {
        match (call.reply, &call.what) {
            (Reply::Appended(_), _) => self.seen = self.seen.max(append.map_or(Index(0), |s| s.last)),
            (Reply::Read(Seen::Record(_)), What::Read { index, .. }) => self.seen = self.seen.max(*index),
            (Reply::Info(first, last), _) => {
                self.seen = self.seen.max(last);
                self.gone = self.gone.max(first);
            }
            (Reply::Discarded, What::Discard { first }) => {
                self.gone = self.gone.max(*first);
                self.seen = self.seen.max(first.previous());
            }
            _ => {}
        }
    }
}

/// Checks an answer against what had been shown at the invocation, and what had been requested at the return.
fn look(n: usize, call: &Call, before: Shown, known: &Known<'_>) -> Result<(), Wrong> {
    let Known { log, asked, .. } = *known;
    match (call.reply, &call.what) {
        (Reply::Read(seen), What::Read { index, linear }) => match seen {
            Seen::Record(number) if log.get(index) != Some(&number) => Err(format!(
                "call {n}: read record {number} at {index}; the log has {:?} there",
                log.get(index)
            )),
            Seen::Record(number) if !known.proposed.contains(&number) => {
                Err(format!("call {n}: read record {number} at {index} before its append was called"))
            }
            Seen::Record(_) if *linear && *index < before.gone => Err(format!(
                "call {n}: read index {index}, although everything below {} was discarded",
                before.gone
            )),
            Seen::Discarded if *index >= asked => Err(format!(
                "call {n}: index {index} was reported as discarded; no discard went beyond {asked}"
            )),
            Seen::Beyond if *linear && *index <= before.seen => Err(format!(
                "call {n}: index {index} was reported as beyond the end, which was {} already",
                before.seen
            )),
            _ => Ok(()),
        },
        (Reply::Info(first, last), _) => {
            if last < before.seen {
                return Err(format!(
                    "call {n}: reported the log's end as {last}; it had reached {}",
                    before.seen
                ));
            }
            if first < before.gone {
                return Err(format!(
                    "call {n}: reported the log's first index as {first}; everything below {} was gone",
                    before.gone
                ));
            }
            if first > asked || last.next() < first {
                return Err(format!(
                    "call {n}: reported the log as {first} to {last}; no discard went beyond {asked}"
                ));
            }
            let Some((start, batch)) = known.batches.range(..=last).next_back() else { return Ok(()) };
            if batch.last > last {
                let end = batch.last;
                return Err(format!(
                    "call {n}: reported the log's end as {last}, within the batch from {start} to {end}"
                ));
            }
            if call.returned.is_some_and(|r| batch.newest > r) {
                return Err(format!(
                    "call {n}: reported the log's end as {last}, before the appends up to there were called"
                ));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::clock::Moment;
    use crate::types::LogNumber;

    /// A history written by hand: calls are made and answered in the order of the text.
    #[derive(Default)]
    struct Hand {
        history: History,
        log: BTreeMap<Index, u64>,
    }

    impl Hand {
        fn of(log: &[u64]) -> Self {
            let log = log.iter().enumerate().map(|(n, r)| (Index(n as u64 + 1), *r)).collect();
            Self { history: History::default(), log }
        }

        fn invoke(&mut self, what: What) -> usize {
            self.history.invoke(Moment(0), 0, LogNumber::OWN, what)
        }

        fn record_reply(&mut self, call: usize, reply: Reply) {
            self.history.answer(Moment(0), call, reply);
        }

        fn both(&mut self, what: What, reply: Reply) {
            let call = self.invoke(what);
            self.record_reply(call, reply);
        }

        fn check(&self) -> Result<(), Wrong> {
            check(&self.history, &self.log)
        }

        fn must_fail(&self, with: &str) {
            let wrong = self.check().expect_err(with);
            assert!(wrong.contains(with), "{wrong}");
        }
    }

    fn append(records: &[u64]) -> What {
        What::Append { records: records.to_vec(), session: None }
    }

    fn stamped(record: u64, sequence: u64) -> What {
        What::Append { records: vec![record], session: Some((SessionId(5), Sequence(sequence))) }
    }

    fn at(first: u64) -> Reply {
        Reply::Appended(Some(Index(first)))
    }

    fn read(index: u64) -> What {
        What::Read { index: Index(index), linear: true }
    }

    fn stale(index: u64) -> What {
        What::Read { index: Index(index), linear: false }
    }

    fn info(first: u64, last: u64) -> Reply {
        Reply::Info(Index(first), Index(last))
    }

    fn discard(first: u64) -> What {
        What::Discard { first: Index(first) }
    }

    #[test]
    fn good_history_passes() {
        let mut h = Hand::of(&[10, 11, 20, 30, 40]);
        h.both(append(&[10, 11]), at(1));
        let (a, b) = (h.invoke(append(&[20])), h.invoke(append(&[30])));
        let look = h.invoke(What::Info);
        h.record_reply(b, at(4));
        h.record_reply(a, at(3));
        h.record_reply(look, info(1, 3)); // concurrent with both: any end is right
        h.both(read(3), Reply::Read(Seen::Record(20)));
        h.both(stale(5), Reply::Read(Seen::Beyond));
        let unknown = h.invoke(append(&[40]));
        h.record_reply(unknown, Reply::Nothing);
        h.both(append(&[99]), Reply::Refused);
        h.both(read(5), Reply::Read(Seen::Record(40)));
        h.both(discard(3), Reply::Discarded);
        h.both(read(2), Reply::Read(Seen::Discarded));
        h.both(stale(2), Reply::Read(Seen::Record(11)));
        h.both(What::Info, info(3, 5));
        h.check().unwrap();
    }

    #[test]
    fn missing_acknowledged_append_is_found() {
        let mut h = Hand::of(&[]);
        h.both(append(&[1]), at(1));
        h.must_fail("not in the log");
        let mut h = Hand::of(&[]);
        h.both(append(&[1]), Reply::Appended(None));
        h.must_fail("not in the log");
    }

    #[test]
    fn record_in_the_log_twice_is_found() {
        let mut h = Hand::of(&[1, 2, 1]);
        h.both(append(&[1]), at(1));
        h.both(append(&[2]), at(2));
        h.must_fail("and again at 3");
    }

    #[test]
    fn record_that_was_never_appended_is_found() {
        Hand::of(&[1]).must_fail("was never appended");
    }

    #[test]
    fn wrong_index_is_found() {
        let mut h = Hand::of(&[1, 2]);
        h.invoke(append(&[1]));
        h.both(append(&[2]), at(1));
        h.must_fail("returned index 1");
    }

    #[test]
    fn refused_append_that_happened_is_found() {
        let mut h = Hand::of(&[1]);
        h.both(append(&[1]), Reply::Refused);
        h.must_fail("refused, but records");
    }

    #[test]
    fn torn_batch_is_found() {
        for log in [&[1, 9][..], &[2], &[1, 9, 2]] {
            let mut h = Hand::of(log);
            h.both(append(&[9]), Reply::Nothing);
            let batch = h.invoke(append(&[1, 2]));
            h.record_reply(batch, Reply::Nothing);
            assert!(h.check().is_err(), "{log:?}");
        }
    }

    #[test]
    fn appends_against_real_time_are_found() {
        let mut h = Hand::of(&[2, 1]);
        h.both(append(&[1]), at(2));
        h.both(append(&[2]), at(1));
        h.must_fail("had been seen before the call");
        // Also if only another client has seen the first one, and its own outcome is unknown.
        let mut h = Hand::of(&[2, 1]);
        h.invoke(append(&[1]));
        h.both(stale(2), Reply::Read(Seen::Record(1)));
        h.both(append(&[2]), at(1));
        h.must_fail("had been seen before the call");
    }

    #[test]
    fn stale_end_and_future_end_are_found() {
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1]), at(1));
        h.both(append(&[2]), at(2));
        h.both(What::Info, info(1, 1));
        h.must_fail("it had reached 2");
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1]), at(1));
        h.both(What::Info, info(1, 2));
        h.both(append(&[2]), at(2));
        h.must_fail("before the appends up to there");
        let mut h = Hand::of(&[1, 2]);
        let append_both = h.invoke(append(&[1, 2]));
        h.both(What::Info, info(1, 1));
        h.record_reply(append_both, at(1));
        h.must_fail("within the batch");
    }

    #[test]
    fn end_that_moves_back_is_found() {
        let mut h = Hand::of(&[1, 2]);
        let (_a, _b) = (h.invoke(append(&[1])), h.invoke(append(&[2])));
        h.both(What::Info, info(1, 2));
        h.both(What::Info, info(1, 1));
        h.must_fail("it had reached 2");
    }

    #[test]
    fn wrong_reads_are_found() {
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1, 2]), at(1));
        h.both(stale(1), Reply::Read(Seen::Record(2)));
        h.must_fail("the log has Some(1)");
        let mut h = Hand::of(&[1]);
        h.both(append(&[1]), at(1));
        h.both(read(1), Reply::Read(Seen::Beyond));
        h.must_fail("beyond the end");
        let mut h = Hand::of(&[1]);
        h.both(stale(1), Reply::Read(Seen::Record(1)));
        h.both(append(&[1]), at(1));
        h.must_fail("before its append was called");
    }

    #[test]
    fn undone_and_unrequested_discards_are_found() {
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1, 2]), at(1));
        h.both(stale(1), Reply::Read(Seen::Discarded));
        h.must_fail("no discard went beyond");
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1, 2]), at(1));
        h.both(discard(2), Reply::Discarded);
        h.both(read(1), Reply::Read(Seen::Record(1)));
        h.must_fail("was discarded");
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1, 2]), at(1));
        h.both(discard(2), Reply::Discarded);
        h.both(What::Info, info(1, 2));
        h.must_fail("everything below 2 was gone");
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1, 2]), at(1));
        h.both(What::Info, info(2, 2));
        h.must_fail("no discard went beyond 1");
        // A discard beyond the end moves the end.
        let mut h = Hand::of(&[1]);
        h.both(discard(7), Reply::Discarded);
        h.both(append(&[1]), at(1));
        h.must_fail("index 6 had been seen");
    }

    #[test]
    fn sessions_out_of_order_and_with_gaps_are_found() {
        let mut h = Hand::of(&[2, 1]);
        let (a, b) = (h.invoke(stamped(1, 1)), h.invoke(stamped(2, 2)));
        h.record_reply(a, at(2));
        h.record_reply(b, at(1));
        h.must_fail("sequence 1 of session 5 is at 2");
        let mut h = Hand::of(&[1, 3]);
        h.both(stamped(1, 1), at(1));
        h.invoke(stamped(2, 2));
        h.both(stamped(3, 3), at(2));
        h.must_fail("but not 2");
        let mut h = Hand::of(&[1, 2]);
        h.both(stamped(1, 1), at(1));
        h.both(stamped(2, 1), at(2));
        h.must_fail("two appends under sequence 1");
    }
}
