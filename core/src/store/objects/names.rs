//! The names of objects in the object store, and the ids of their segment files.

use crate::random::SplitMix;
use crate::types::{LogId, SegmentId};

/// The folder of all that a log has.
pub(crate) fn log_folder(log: LogId) -> String {
    format!("{:032x}/", log.0)
}

/// The folder of a log's objects.
pub(crate) fn folder(log: LogId) -> String {
    format!("{:032x}/o/", log.0)
}

/// The name of an object.
pub(crate) fn object_name(log: LogId, number: u64) -> String {
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
pub(crate) fn begin_name(log: LogId, number: u64) -> String {
    format!("{}{number:020}", begins(log))
}

/// The contents of a begin.
pub(crate) fn begin_text(log: LogId, number: u64) -> String {
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

/// The name of the object that says which log this is.
pub(crate) fn root_name(log: LogId) -> String {
    format!("{:032x}/root", log.0)
}

/// The text of the error that this object is missing.
pub(crate) fn not_there(root: &str) -> String {
    format!(
        "{root} is not in the object store any more: is this the right location, and is its directory mounted? Nothing is stored \
         until it is there again"
    )
}

/// The log in the name of such an object; None for other names.
pub(crate) fn root_log(name: &str) -> Option<LogId> {
    let digits = name.strip_suffix("/root").filter(|digits| digits.len() == 32)?;
    let is_hex = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    u128::from_str_radix(digits, 16).ok().filter(|_| is_hex).map(LogId)
}

/// The contents of that object.
pub(crate) fn root_text(log: LogId) -> String {
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

    /// The salts are part of the format: an object that was made by an earlier build must have the same.
    #[test]
    fn salts_differ_and_never_change() {
        let salts = [salt(LogId(1), 0), salt(LogId(1), 1), salt(LogId(2), 0), salt(LogId(1 << 64), 0)];
        assert!(salts.iter().all(|salt| salt.0 % 2 == 1));
        assert!((0..salts.len()).all(|n| !salts[..n].contains(&salts[n])));
        assert_eq!(salts[0], SegmentId(12_793_040_940_332_582_595));
    }
}
