//! The names of objects in the object store, and the ids of their segment files.

use crate::random::SplitMix;
use crate::store::format::objects::Ancestor;
use crate::types::{LogId, SegmentId};

/// Says of which log the objects of a log are: those of a branch are below a number those of the log that it was made of, or of an
/// ancestor of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    pub(crate) log: LogId,
    /// The oldest first.
    pub(crate) ancestors: Vec<Ancestor>,
}

impl Lineage {
    /// Of a log that is no branch.
    pub(crate) fn of(log: LogId) -> Self {
        Self { log, ancestors: Vec::new() }
    }

    /// The log of which object `number` is: its name and the salt of its blocks follow from that one's id.
    pub(crate) fn owner(&self, number: u64) -> LogId {
        let of = self.ancestors.iter().find(|ancestor| number < ancestor.below);
        of.map_or(self.log, |ancestor| ancestor.log)
    }

    /// The number of the first object that is the log's own.
    pub(crate) fn own_from(&self) -> u64 {
        self.ancestors.last().map_or(0, |ancestor| ancestor.below)
    }

    /// The ancestors, each with the numbers of the objects that are its.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (LogId, std::ops::Range<u64>)> + '_ {
        self.ancestors.iter().scan(0, |from, Ancestor { log, below }| {
            let from = std::mem::replace(from, *below);
            Some((*log, from..*below))
        })
    }
}

/// The folder of all that a log has.
pub(crate) fn log_folder(log: LogId) -> String {
    format!("{:032x}/", log.0)
}

/// The folder of a log's objects.
pub(crate) fn folder(log: LogId) -> String {
    format!("{:032x}/o/", log.0)
}

/// The name of an object.
pub fn object_name(log: LogId, number: u64) -> String {
    format!("{}{number:020}", folder(log))
}

/// The number in an object's name; None for other names.
pub(crate) fn object_number(log: LogId, name: &str) -> Option<u64> {
    number_in(&folder(log), name)
}

/// The folder of a log's begins.
pub(crate) fn begins(log: LogId) -> String {
    format!("{:032x}/begin/", log.0)
}

/// The name of a begin: it says that the records of all objects below this number are discarded.
pub fn begin_name(log: LogId, number: u64) -> String {
    format!("{}{number:020}", begins(log))
}

/// The contents of a begin.
pub fn begin_text(log: LogId, number: u64) -> String {
    format!("chiplog objects\nlog {:032x}\nbegin {number}\n", log.0)
}

/// The number in the name of a begin; None for other names.
pub(crate) fn begin_number(log: LogId, name: &str) -> Option<u64> {
    number_in(&begins(log), name)
}

fn number_in(folder: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(folder)?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

/// The name of the object with the state in which a branch began. No other log has one.
pub fn branch_name(log: LogId) -> String {
    format!("{:032x}/branch", log.0)
}

/// The name of the object that says which log this is.
pub fn root_name(log: LogId) -> String {
    format!("{:032x}/root", log.0)
}

/// The name of the object that a program makes to learn the store's time, and removes.
pub fn time_name(log: LogId) -> String {
    format!("{:032x}/time", log.0)
}

/// The text of the error that this object is missing.
pub fn not_there(root: &str) -> String {
    format!(
        "{root} is not in the object store any more: is this the right location, is its directory mounted, or did `chiplog tier gc --all` \
         delete it? Nothing is stored until it is there again"
    )
}

/// The log in the name of such an object; None for other names.
pub(crate) fn root_log(name: &str) -> Option<LogId> {
    let digits = name.strip_suffix("/root").filter(|digits| digits.len() == 32)?;
    let is_hex = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    u128::from_str_radix(digits, 16).ok().filter(|_| is_hex).map(LogId)
}

/// The contents of that object.
pub fn root_text(log: LogId) -> String {
    format!("chiplog objects\nformat 1\nlog {:032x}\n", log.0)
}

/// The segment id of an object's file: the salt of its blocks. Every replica derives the same one.
pub(crate) fn salt(log: LogId, number: u64) -> SegmentId {
    let mut mixed = SplitMix(log.0 as u64);
    let high = SplitMix(mixed.next() ^ (log.0 >> 64) as u64).next();
    SegmentId(SplitMix(high ^ number).next() | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_log_and_in_order() {
        let log = LogId(7);
        let name = object_name(log, 12);
        assert_eq!(name, "00000000000000000000000000000007/o/00000000000000000012");
        assert_eq!(object_number(log, &name), Some(12));
        assert_eq!(object_number(LogId(8), &name), None);
        let begin = begin_name(log, 12);
        assert_eq!(begin, "00000000000000000000000000000007/begin/00000000000000000012");
        assert_eq!((begin_number(log, &begin), object_number(log, &begin)), (Some(12), None));
        for no in [
            "12",
            "00000000000000000000000000000007/o/12",
            "00000000000000000000000000000007/o/+0000000000000000012",
        ] {
            assert_eq!(object_number(log, no), None, "{no}");
        }
        assert_eq!(root_log(&root_name(log)), Some(log));
        for no in [
            "root",
            "7/root",
            "+0000000000000000000000000000007/root",
            "0000000000000000000000000000000A/root",
        ] {
            assert_eq!(root_log(no), None, "{no}");
        }
        assert!(object_name(log, u64::MAX) > object_name(log, 9));
    }

    #[test]
    fn objects_of_a_branch_are_those_of_its_ancestors_at_first() {
        let ancestors = vec![Ancestor { log: LogId(1), below: 2 }, Ancestor { log: LogId(2), below: 4 }];
        let lineage = Lineage { log: LogId(3), ancestors };
        let owners: Vec<u128> = (0..6).map(|number| lineage.owner(number).0).collect();
        assert_eq!(owners, [1, 1, 2, 2, 3, 3]);
        assert_eq!(lineage.own_from(), 4);
        assert_eq!(lineage.parts().collect::<Vec<_>>(), [(LogId(1), 0..2), (LogId(2), 2..4)]);
        assert_eq!((Lineage::of(LogId(3)).owner(0), Lineage::of(LogId(3)).own_from()), (LogId(3), 0));
    }

    /// The salts are part of the format: an object that was made by an earlier build must have the same.
    #[test]
    fn salts_differ_and_never_change() {
        let salts = [salt(LogId(1), 0), salt(LogId(1), 1), salt(LogId(2), 0), salt(LogId(1 << 64), 0)];
        assert!(salts.iter().all(|salt| salt.0 % 2 == 1));
        assert!((0..salts.len()).all(|n| !salts[..n].contains(&salts[n])));
        assert_eq!(salts[0], SegmentId(12_793_040_940_332_582_595));
    }
}
