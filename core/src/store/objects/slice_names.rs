//! The names of slices in the object store, and the salt of their blocks.
//!
//! ```text
//! <log id>/s/<first entry>.<last entry>.<term of the last>          continues an object or a slice
//!            <first entry>.<last entry>.<term of the last>.begin    begins with the state before its first entry
//! ```
//!
//! An entry's number and term say which entries lead to it. So a name says which bytes a slice has, and two slices with different
//! bytes have different names, also of two histories under one log id.

use super::names::salt;
use crate::types::{EntryIndex, LogId, SegmentId, Term};
use std::fmt;

/// Makes the salts of slices others than those of objects.
const APART: u128 = u128::from_le_bytes(*b"slices of a log.");
const BEGIN: &str = ".begin";

/// A slice, as its name describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SliceName {
    pub(crate) log: LogId,
    pub(crate) first: EntryIndex,
    pub(crate) last: EntryIndex,
    /// The last entry's term.
    pub(crate) term: Term,
    /// Whether it begins with the state before its first entry, so that it needs nothing before it.
    pub(crate) begins: bool,
}

impl SliceName {
    /// The slice of a name; None for names of other things.
    pub(crate) fn parse(log: LogId, name: &str) -> Option<Self> {
        let name = name.strip_prefix(&slices(log))?;
        let (name, begins) = name.strip_suffix(BEGIN).map_or((name, false), |name| (name, true));
        let mut numbers = name.split('.').map(|digits| {
            let is_number = digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| digits.parse().ok()).flatten()
        });
        let (first, last) = (EntryIndex(numbers.next()??), EntryIndex(numbers.next()??));
        let term = Term(numbers.next()??);
        let is_possible = numbers.next().is_none() && first > EntryIndex(0) && first <= last;
        is_possible.then_some(Self { log, first, last, term, begins })
    }

    /// The salt of its blocks.
    pub(crate) fn salt(&self) -> SegmentId {
        salt(LogId(self.log.0 ^ APART), self.first.0)
    }
}

impl fmt::Display for SliceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { log, first, last, term, begins } = self;
        let begin = if *begins { BEGIN } else { "" };
        write!(f, "{}{:020}.{:020}.{:020}{begin}", slices(*log), first.0, last.0, term.0)
    }
}

/// The folder of a log's slices.
pub(crate) fn slices(log: LogId) -> String {
    format!("{:032x}/s/", log.0)
}

/// The slices that continue behind an entry, one after the other, as far as their names say: each time the one of the highest term that
/// reaches furthest. `may_use` leaves some out.
pub(crate) fn chain(
    names: &[SliceName],
    behind: EntryIndex,
    may_use: impl Fn(&SliceName) -> bool,
) -> Vec<SliceName> {
    let (mut chain, mut end) = (Vec::new(), behind);
    let mut sorted: Vec<_> = names.iter().filter(|name| name.last > behind && may_use(name)).collect();
    sorted.sort_unstable_by_key(|name| name.first);
    let mut rest = sorted.into_iter().peekable();
    let mut furthest: Option<&SliceName> = None;
    loop {
        while let Some(name) = rest.next_if(|name| name.first <= end.next()) {
            if name.last > end && furthest.is_none_or(|best| (name.term, name.last) > (best.term, best.last))
            {
                furthest = Some(name);
            }
        }
        match furthest.take_if(|best| best.last > end) {
            Some(best) => {
                chain.push(*best);
                end = best.last;
            }
            None => return chain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(first: u64, last: u64) -> SliceName {
        let (first, last) = (EntryIndex(first), EntryIndex(last));
        SliceName { log: LogId(7), first, last, term: Term(3), begins: false }
    }

    #[test]
    fn names_are_those_of_the_log_and_in_order() {
        let of = name(12, 40);
        let text = "00000000000000000000000000000007/s/00000000000000000012.00000000000000000040.00000000000000000003";
        assert_eq!(of.to_string(), text);
        let begins = SliceName { begins: true, ..of };
        for of in [of, begins] {
            assert_eq!(SliceName::parse(LogId(7), &of.to_string()), Some(of));
            assert_eq!(SliceName::parse(LogId(8), &of.to_string()), None);
            crate::vault::check_name(&of.to_string()).unwrap();
        }
        for no in [
            &text[..text.len() - 1],
            &text.replace(".", "-"),
            &format!("{text}.end"),
            &format!("{text}.{:020}", 1),
        ] {
            assert_eq!(SliceName::parse(LogId(7), no), None, "{no}");
        }
        assert_eq!(SliceName::parse(LogId(7), &name(5, 4).to_string()), None);
        assert!(name(9, 9).to_string() < name(10, 10).to_string());
        // The salts are part of the format.
        assert_eq!(of.salt(), begins.salt());
        assert_ne!(of.salt(), salt(LogId(7), 12));
    }

    #[test]
    fn chain_reaches_as_far_as_names_say() {
        let names = [name(1, 5), name(3, 9), name(6, 7), name(8, 8), name(10, 10), name(12, 20)];
        let all = |_: &SliceName| true;
        assert_eq!(chain(&names, EntryIndex(0), all), [name(1, 5), name(3, 9), name(10, 10)]);
        assert_eq!(chain(&names, EntryIndex(7), all), [name(3, 9), name(10, 10)]);
        let without = |of: &SliceName| of.first.0 != 3;
        assert_eq!(chain(&names, EntryIndex(0), without), [name(1, 5), name(6, 7), name(8, 8)]);
        assert_eq!(chain(&names, EntryIndex(10), all), []);
        assert_eq!(chain(&names, EntryIndex(11), all), [name(12, 20)]);
    }
}
