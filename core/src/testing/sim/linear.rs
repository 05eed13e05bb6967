//! Whether a history can have come from one log that does one thing at a time: exact, and in one pass.
//!
//! Deciding that is hard in general, because the order has to be guessed. Here it is given: records have
//! indexes. All calls stand in an order that the answers tell (an append at its records, what looked at the log's end at
//! the end it saw), and a history is good if no call came back before another one was made that stands in front
//! of it. So it is enough to go through calls and returns by time and to keep two numbers:
//!
//! - *seen*: the last index that any call has shown when it returned. What is appended from then on stands behind it, and what looks
//!   for the end from then on sees at least that.
//! - *gone*: the largest index below which a call that has returned has discarded. What looks from then on must
//!   not find a record below.
//!
//! A call whose outcome is not known may have happened, once, or not. Which, the log's contents tell.
//!
//! Must not know: how the history came about.

use super::history::{Call, History, Seen, Told, What, When};
use crate::types::{Index, Sequence, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// What is wrong, with the numbers of the calls.
type Wrong = String;

/// Checks a history against the contents that the log had, in all: `log` has the number of the record at each
/// index that was ever committed, discarded ones included.
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
        return Err(format!("nobody appended record {number}, which is at {index}"));
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

/// Where each record stands; once at most.
fn places(log: &BTreeMap<Index, u64>) -> Result<BTreeMap<u64, Index>, Wrong> {
    let mut place = BTreeMap::new();
    for (index, number) in log {
        if let Some(other) = place.insert(*number, *index) {
            return Err(format!("record {number} stands at {other} and again at {index}"));
        }
    }
    Ok(place)
}

/// Where the records of one append stand.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: Index,
    last: Index,
}

/// Where each append went, by call; none if it did not happen.
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
                    "call {n}: record {r} is in the log without those before it in its batch"
                ));
            }
            if let Told::Appended(_) = call.told {
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
        match call.told {
            Told::Refused => {
                return Err(format!(
                    "call {n}: refused, and yet records {records:?} are in the log at {first}"
                ));
            }
            Told::Appended(Some(told)) if told != first => {
                return Err(format!("call {n}: told index {told}, and its records are at {first}"));
            }
            _ => {}
        }
        spans.push(Some(Span { first, last: first.plus(records.len() as u64).previous() }));
    }
    Ok(spans)
}

/// Appends of a session stand in the order of their numbers.
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
                    "calls {a} and {b}: sequence {before} of session {id} stands at {}, and {after} at {}",
                    x.first, y.first
                ));
            }
            if after.0 != before.0 + 1 {
                return Err(format!(
                    "session {id}: sequence {after} is in the log, and not {}",
                    before.0 + 1
                ));
            }
        }
    }
    Ok(())
}

/// What has been shown so far.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    /// The last index.
    seen: Index,
    /// Below this all is gone.
    gone: Index,
}

/// The end of a batch, and when the last of those up to it was asked for.
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

/// What an answer is looked at with.
struct Known<'a> {
    log: &'a BTreeMap<Index, u64>,
    batches: &'a BTreeMap<Index, Batch>,
    /// Records that have been asked to be appended.
    proposed: &'a BTreeSet<u64>,
    /// The most that a discard that was asked for can have taken.
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
                    "call {n}: appended at {}, although index {} had been seen before it was made",
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
        match (call.told, &call.what) {
            (Told::Appended(_), _) => self.seen = self.seen.max(append.map_or(Index(0), |s| s.last)),
            (Told::Read(Seen::Record(_)), What::Read { index, .. }) => self.seen = self.seen.max(*index),
            (Told::Info(first, last), _) => {
                self.seen = self.seen.max(last);
                self.gone = self.gone.max(first);
            }
            (Told::Discarded, What::Discard { first }) => {
                self.gone = self.gone.max(*first);
                self.seen = self.seen.max(first.previous());
            }
            _ => {}
        }
    }
}

/// Whether an answer fits what had been shown when the call was made, and what had been asked when it returned.
fn look(n: usize, call: &Call, before: Shown, known: &Known<'_>) -> Result<(), Wrong> {
    let Known { log, asked, .. } = *known;
    match (call.told, &call.what) {
        (Told::Read(seen), What::Read { index, linear }) => match seen {
            Seen::Record(number) if log.get(index) != Some(&number) => Err(format!(
                "call {n}: read record {number} at {index}; the log has {:?} there",
                log.get(index)
            )),
            Seen::Record(number) if !known.proposed.contains(&number) => {
                Err(format!("call {n}: read record {number} at {index} before anybody appended it"))
            }
            Seen::Record(_) if *linear && *index < before.gone => {
                Err(format!("call {n}: read index {index}, although all below {} was discarded", before.gone))
            }
            Seen::Discarded if *index >= asked => Err(format!(
                "call {n}: index {index} was said to be discarded; nobody asked for more than {asked}"
            )),
            Seen::Beyond if *linear && *index <= before.seen => Err(format!(
                "call {n}: index {index} was said to be beyond the end, which was {} already",
                before.seen
            )),
            _ => Ok(()),
        },
        (Told::Info(first, last), _) => {
            if last < before.seen {
                return Err(format!(
                    "call {n}: said that the log ends at {last}; it had reached {}",
                    before.seen
                ));
            }
            if first < before.gone {
                return Err(format!(
                    "call {n}: said that the log begins at {first}; all below {} was gone",
                    before.gone
                ));
            }
            if first > asked || last.next() < first {
                return Err(format!(
                    "call {n}: said that the log goes from {first} to {last}; asked to discard was {asked}"
                ));
            }
            let Some((start, batch)) = known.batches.range(..=last).next_back() else { return Ok(()) };
            if batch.last > last {
                let end = batch.last;
                return Err(format!(
                    "call {n}: said that the log ends at {last}, within the batch from {start} to {end}"
                ));
            }
            if call.returned.is_some_and(|r| batch.newest > r) {
                return Err(format!(
                    "call {n}: said that the log ends at {last}, before all up to there was appended"
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

    /// A history by hand: calls are made and answered in the order of the text.
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

        fn ask(&mut self, what: What) -> usize {
            self.history.invoke(Moment(0), 0, what)
        }

        fn tell(&mut self, call: usize, told: Told) {
            self.history.answer(Moment(0), call, told);
        }

        fn both(&mut self, what: What, told: Told) {
            let call = self.ask(what);
            self.tell(call, told);
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

    fn at(first: u64) -> Told {
        Told::Appended(Some(Index(first)))
    }

    fn read(index: u64) -> What {
        What::Read { index: Index(index), linear: true }
    }

    fn stale(index: u64) -> What {
        What::Read { index: Index(index), linear: false }
    }

    fn info(first: u64, last: u64) -> Told {
        Told::Info(Index(first), Index(last))
    }

    fn discard(first: u64) -> What {
        What::Discard { first: Index(first) }
    }

    #[test]
    fn a_good_history_passes() {
        let mut h = Hand::of(&[10, 11, 20, 30, 40]);
        h.both(append(&[10, 11]), at(1));
        let (a, b) = (h.ask(append(&[20])), h.ask(append(&[30])));
        let look = h.ask(What::Info);
        h.tell(b, at(4));
        h.tell(a, at(3));
        h.tell(look, info(1, 3)); // concurrent with both: any end will do
        h.both(read(3), Told::Read(Seen::Record(20)));
        h.both(stale(5), Told::Read(Seen::Beyond));
        let unknown = h.ask(append(&[40]));
        h.tell(unknown, Told::Nothing);
        h.both(append(&[99]), Told::Refused);
        h.both(read(5), Told::Read(Seen::Record(40)));
        h.both(discard(3), Told::Discarded);
        h.both(read(2), Told::Read(Seen::Discarded));
        h.both(stale(2), Told::Read(Seen::Record(11)));
        h.both(What::Info, info(3, 5));
        h.check().unwrap();
    }

    #[test]
    fn an_acknowledged_append_that_is_missing_is_found() {
        let mut h = Hand::of(&[]);
        h.both(append(&[1]), at(1));
        h.must_fail("not in the log");
        let mut h = Hand::of(&[]);
        h.both(append(&[1]), Told::Appended(None));
        h.must_fail("not in the log");
    }

    #[test]
    fn a_record_that_stands_twice_is_found() {
        let mut h = Hand::of(&[1, 2, 1]);
        h.both(append(&[1]), at(1));
        h.both(append(&[2]), at(2));
        h.must_fail("and again at 3");
    }

    #[test]
    fn a_record_from_nowhere_is_found() {
        Hand::of(&[1]).must_fail("nobody appended record 1");
    }

    #[test]
    fn a_wrong_index_is_found() {
        let mut h = Hand::of(&[1, 2]);
        h.ask(append(&[1]));
        h.both(append(&[2]), at(1));
        h.must_fail("told index 1");
    }

    #[test]
    fn a_refused_append_that_happened_is_found() {
        let mut h = Hand::of(&[1]);
        h.both(append(&[1]), Told::Refused);
        h.must_fail("refused, and yet");
    }

    #[test]
    fn a_torn_batch_is_found() {
        for log in [&[1, 9][..], &[2], &[1, 9, 2]] {
            let mut h = Hand::of(log);
            h.both(append(&[9]), Told::Nothing);
            let batch = h.ask(append(&[1, 2]));
            h.tell(batch, Told::Nothing);
            assert!(h.check().is_err(), "{log:?}");
        }
    }

    #[test]
    fn appends_against_real_time_are_found() {
        let mut h = Hand::of(&[2, 1]);
        h.both(append(&[1]), at(2));
        h.both(append(&[2]), at(1));
        h.must_fail("had been seen before it was made");
        // Not even if only somebody else has seen the first one, and its own outcome is not known.
        let mut h = Hand::of(&[2, 1]);
        h.ask(append(&[1]));
        h.both(stale(2), Told::Read(Seen::Record(1)));
        h.both(append(&[2]), at(1));
        h.must_fail("had been seen before it was made");
    }

    #[test]
    fn an_end_that_is_too_old_or_too_new_is_found() {
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1]), at(1));
        h.both(append(&[2]), at(2));
        h.both(What::Info, info(1, 1));
        h.must_fail("it had reached 2");
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1]), at(1));
        h.both(What::Info, info(1, 2));
        h.both(append(&[2]), at(2));
        h.must_fail("before all up to there");
        let mut h = Hand::of(&[1, 2]);
        let append_both = h.ask(append(&[1, 2]));
        h.both(What::Info, info(1, 1));
        h.tell(append_both, at(1));
        h.must_fail("within the batch");
    }

    #[test]
    fn ends_that_go_back_are_found() {
        let mut h = Hand::of(&[1, 2]);
        let (_a, _b) = (h.ask(append(&[1])), h.ask(append(&[2])));
        h.both(What::Info, info(1, 2));
        h.both(What::Info, info(1, 1));
        h.must_fail("it had reached 2");
    }

    #[test]
    fn wrong_reads_are_found() {
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1, 2]), at(1));
        h.both(stale(1), Told::Read(Seen::Record(2)));
        h.must_fail("the log has Some(1)");
        let mut h = Hand::of(&[1]);
        h.both(append(&[1]), at(1));
        h.both(read(1), Told::Read(Seen::Beyond));
        h.must_fail("beyond the end");
        let mut h = Hand::of(&[1]);
        h.both(stale(1), Told::Read(Seen::Record(1)));
        h.both(append(&[1]), at(1));
        h.must_fail("before anybody appended it");
    }

    #[test]
    fn discards_that_do_not_hold_or_that_nobody_asked_for_are_found() {
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1, 2]), at(1));
        h.both(stale(1), Told::Read(Seen::Discarded));
        h.must_fail("nobody asked");
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1, 2]), at(1));
        h.both(discard(2), Told::Discarded);
        h.both(read(1), Told::Read(Seen::Record(1)));
        h.must_fail("was discarded");
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1, 2]), at(1));
        h.both(discard(2), Told::Discarded);
        h.both(What::Info, info(1, 2));
        h.must_fail("all below 2 was gone");
        let mut h = Hand::of(&[1, 2]);
        h.both(append(&[1, 2]), at(1));
        h.both(What::Info, info(2, 2));
        h.must_fail("asked to discard was 1");
        // A discard beyond the end moves the end.
        let mut h = Hand::of(&[1]);
        h.both(discard(7), Told::Discarded);
        h.both(append(&[1]), at(1));
        h.must_fail("index 6 had been seen");
    }

    #[test]
    fn sessions_out_of_order_and_with_gaps_are_found() {
        let mut h = Hand::of(&[2, 1]);
        let (a, b) = (h.ask(stamped(1, 1)), h.ask(stamped(2, 2)));
        h.tell(a, at(2));
        h.tell(b, at(1));
        h.must_fail("sequence 1 of session 5 stands at 2");
        let mut h = Hand::of(&[1, 3]);
        h.both(stamped(1, 1), at(1));
        h.ask(stamped(2, 2));
        h.both(stamped(3, 3), at(2));
        h.must_fail("and not 2");
        let mut h = Hand::of(&[1, 2]);
        h.both(stamped(1, 1), at(1));
        h.both(stamped(2, 1), at(2));
        h.must_fail("two appends under sequence 1");
    }
}
