//! Pins: small objects in the object store, each of which keeps a range of a log's objects from deletion.
//!
//! ```text
//! <log id>/pin/<name>      chiplog pin
//!                          format 1
//!                          log <log id>
//!                          objects <first> <last>
//!                          records <first> <last>
//!                          made <ms since 1970>
//!                          by <16 hexadecimal digits>
//!                          sum <CRC-32C of all before this line, 8 hexadecimal digits>
//! ```
//!
//! A pin is made once and never replaced. `by` is random: two makers of one name store different bytes, so only one of them
//! gets the name.
//!
//! Must not know: who makes pins, who deletes objects.

use crate::error::{Error, ErrorKind, Result};
use crate::record::crc::Crc;
use crate::types::{Index, LogId, Timestamp};
use crate::vault::Vault;
use bytes::Bytes;
use std::collections::BTreeSet;

/// The length of the longest name of a pin.
pub const PIN_NAME_BYTES_MAX: usize = 64;

/// The most pins that a log can have. A deletion reads all of them.
pub const PINS_MAX: usize = 1000;

/// The beginning of the name of a branch's pin; the branch's id follows.
const BRANCH: &str = "branch-";

/// How often the pins of a log are read while they come and go.
const LISTS_MAX: usize = 16;

/// The size of the largest pin.
const PIN_BYTES_MAX: u64 = 1024;

/// A pin: it keeps objects of a log in an object store, also after the log has discarded their records.
///
/// ```
/// use chiplog::backup::Pin;
/// let vault = chiplog::vault::MemoryVault::default();
/// assert!(Pin::list(&vault, chiplog::LogId(7))?.is_empty());
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pin {
    /// Its name: 1 to [`PIN_NAME_BYTES_MAX`] of the characters `a-z 0-9 . _ -`, the first one a letter or a digit.
    pub name: String,
    /// The number of the first object that it keeps.
    pub first_object: u64,
    /// The number of the last object that it keeps.
    pub last_object: u64,
    /// The first record in these objects.
    pub first: Index,
    /// The last record in these objects. Below `first`: there are none.
    pub last: Index,
    /// When it was made, by the clock of its maker.
    pub made: Timestamp,
    /// Random: whose pin this is.
    pub(crate) by: u64,
}

impl Pin {
    /// Whether it keeps an object.
    pub(crate) fn keeps(&self, number: u64) -> bool {
        (self.first_object..=self.last_object).contains(&number)
    }

    /// The contents of the object that is the pin.
    pub(crate) fn text(&self, log: LogId) -> Bytes {
        let Self { first_object, last_object, first, last, made, by, .. } = self;
        let text = format!(
            "chiplog pin\nformat 1\nlog {:032x}\nobjects {first_object} {last_object}\nrecords {first} {last}\nmade {}\nby {by:016x}\n",
            log.0, made.0
        );
        let sum = Crc::new().add(text.as_bytes()).sum();
        format!("{text}sum {sum:08x}\n").into()
    }

    /// The reverse of [`Self::text`].
    fn parse(log: LogId, name: &str, text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let body = text.strip_prefix(&format!("chiplog pin\nformat 1\nlog {:032x}\nobjects ", log.0))?;
        let (objects, rest) = body.split_once("\nrecords ")?;
        let (records, rest) = rest.split_once("\nmade ")?;
        let (made, rest) = rest.split_once("\nby ")?;
        let (by, _) = rest.split_once("\nsum ")?;
        let pair = |text: &str| {
            let (first, last) = text.split_once(' ')?;
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        let ((first_object, last_object), (first, last)) = (pair(objects)?, pair(records)?);
        let pin = Self {
            name: name.to_owned(),
            first_object,
            last_object,
            first: Index(first),
            last: Index(last),
            made: Timestamp(made.parse().ok()?),
            by: u64::from_str_radix(by, 16).ok()?,
        };
        // Each pin has one text, with its sum. Any other one is no pin.
        (pin.text(log) == text && first_object <= last_object).then_some(pin)
    }
}

/// The folder of a log's pins.
pub(crate) fn folder(log: LogId) -> String {
    format!("{:032x}/pin/", log.0)
}

/// The name of the object that is a pin.
pub(crate) fn object_name(log: LogId, name: &str) -> String {
    format!("{}{name}", folder(log))
}

/// The name of the pin by which a branch keeps objects of an ancestor.
pub(crate) fn branch_pin(branch: LogId) -> String {
    format!("{BRANCH}{:032x}", branch.0)
}

/// The branch whose pin has this name. None: it is no branch's.
pub(crate) fn branch_of_pin(name: &str) -> Option<LogId> {
    let digits = name.strip_prefix(BRANCH).filter(|digits| digits.len() == 32)?;
    let is_hex = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    u128::from_str_radix(digits, 16).ok().filter(|_| is_hex).map(LogId)
}

/// Checks the name of a pin.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"._-".contains(&c);
    let begins = name.bytes().next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if begins && name.len() <= PIN_NAME_BYTES_MAX && name.bytes().all(is_inner) {
        return Ok(());
    }
    let what = format!(
        "{name:?} cannot be the name of a pin: it has 1 to {PIN_NAME_BYTES_MAX} of the characters a-z 0-9 . _ -, and begins with a \
         letter or a digit"
    );
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

/// The pin of this name; None if there is none.
///
/// # Errors
/// `Unsupported`: it is damaged, or of a newer format. Those of [`Vault`].
pub(crate) fn read(vault: &dyn Vault, log: LogId, name: &str) -> Result<Option<Pin>> {
    let object = object_name(log, name);
    let Some(mut bytes) = vault.size(&object)? else { return Ok(None) };
    loop {
        let text = match vault.get(&object, 0..bytes.min(PIN_BYTES_MAX)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        if let Some(pin) = Pin::parse(log, name, &text) {
            return Ok(Some(pin));
        }
        // It may have been removed and made again meanwhile, with another size.
        let Some(now) = vault.size(&object)? else { return Ok(None) };
        if std::mem::replace(&mut bytes, now) == now {
            break;
        }
    }
    let what = format!(
        "{object} in the object store is damaged, or of a newer format. No object of this log is deleted while it is there: use a \
         newer chiplog, or remove it with `chiplog tier unpin`"
    );
    Err(Error::new(ErrorKind::Unsupported, what))
}

/// Removes the pin of this name if it is the one with this number: it may have been removed meanwhile, and another one made of its name.
///
/// # Errors
/// Those of [`read`].
pub(crate) fn delete_own(vault: &dyn Vault, log: LogId, name: &str, by: u64) -> Result<()> {
    match read(vault, log, name)? {
        Some(pin) if pin.by == by => vault.delete(&object_name(log, name)),
        _ => Ok(()),
    }
}

/// The number of pins of a log.
pub(crate) fn count(vault: &dyn Vault, log: LogId) -> Result<usize> {
    Ok(vault.list(&folder(log))?.len())
}

/// All pins of a log, by name. Anything in their folder counts as a pin. One that a list has and that is not found is gone only if
/// another list lacks it: an answer that an object is not there, which a store gives in error, must not undo a pin.
///
/// Invariant: a range that some pin keeps all the time is kept by one of these. A pin can take over the objects of another one, which
/// goes then, and neither may be in a list that is read in pieces, or be there when it is read: so all are read again until a list has no
/// other names than the one before, and all of that were found.
///
/// # Errors
/// Those of [`read`]: a pin that cannot be read could keep any object. `Unavailable`: one is in the lists, and is not found; or they come and
/// go all the time.
pub(crate) fn all(vault: &dyn Vault, log: LogId) -> Result<Vec<Pin>> {
    let folder = folder(log);
    let list = || -> Result<BTreeSet<String>> {
        Ok(vault.list(&folder)?.into_iter().map(|object| object.name).collect())
    };
    let mut names = list()?;
    for _ in 0..LISTS_MAX {
        let (mut pins, mut unfound) = (Vec::new(), BTreeSet::new());
        for name in &names {
            match read(vault, log, name.strip_prefix(&folder).unwrap_or(name))? {
                Some(pin) => pins.push(pin),
                None => _ = unfound.insert(name),
            }
        }
        let later = list()?;
        if let Some(name) = unfound.iter().find(|name| later.contains(**name)) {
            let what = format!("{name} is in the list of the object store, and the store does not find it");
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        if unfound.is_empty() && later.is_subset(&names) {
            return Ok(pins);
        }
        names = later;
    }
    let what = format!(
        "pins in {folder} of the object store came and went while they were read, {LISTS_MAX} times: try again later"
    );
    Err(Error::new(ErrorKind::Unavailable, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vault::{HookedVault, MemoryVault};
    use std::sync::Arc;

    fn pin(name: &str) -> Pin {
        Pin {
            name: name.to_owned(),
            first_object: 3,
            last_object: 9,
            first: Index(40),
            last: Index(99),
            made: Timestamp(1_700_000_000_000),
            by: 0xab,
        }
    }

    #[test]
    fn pin_is_a_text_of_one_form() {
        let (log, vault) = (LogId(7), MemoryVault::default());
        let begin = "chiplog pin\nformat 1\nlog 00000000000000000000000000000007\nobjects 3 9\nrecords 40 99\nmade 1700000000000\nby \
                     00000000000000ab\n";
        let summed = |text: &str| format!("{text}sum {:08x}\n", Crc::new().add(text.as_bytes()).sum());
        let text = &summed(begin)[..];
        assert_eq!(pin("a").text(log), text);
        for at in 0..text.len() * 8 {
            let mut flipped = text.as_bytes().to_vec();
            flipped[at / 8] ^= 1 << (at % 8);
            assert_eq!(Pin::parse(log, "a", &flipped), None, "bit {at}");
        }
        vault.create(&object_name(log, "a"), pin("a").text(log)).unwrap();
        assert_eq!(read(&vault, log, "a").unwrap(), Some(pin("a")));
        assert_eq!(read(&vault, log, "b").unwrap(), None);
        assert_eq!(all(&vault, log).unwrap(), [pin("a")]);
        for cut in 0..text.len() {
            assert_eq!(Pin::parse(log, "a", &text.as_bytes()[..cut]), None, "{cut}");
        }
        for (from, to) in
            [("format 1", "format 2"), ("3 9", "9 3"), ("3 9", "03 9"), ("40 99", "+40 99"), ("ab\n", "AB\n")]
        {
            let other = summed(&begin.replace(from, to));
            assert_eq!(Pin::parse(log, "a", other.as_bytes()), None, "{to}");
            vault.put(&object_name(log, "b"), &[other.into()]).unwrap();
            let error = all(&vault, log).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        assert_eq!(Pin::parse(LogId(8), "a", text.as_bytes()), None, "of another log");
    }

    /// A branch takes over the objects of a pin, which is removed then. A deletion that had listed the pin before, and did not find it when
    /// it came to read it, knew neither.
    #[test]
    fn pin_that_takes_over_from_another_is_read() {
        let (log, below) = (LogId(7), Arc::new(MemoryVault::default()));
        let vault = HookedVault::new(below.clone());
        let put = move |below: &MemoryVault, name: &str| {
            below.put(&object_name(log, name), &[pin(name).text(log)]).unwrap();
        };
        ["a", "z"].into_iter().for_each(|name| put(&below, name));
        let (store, mut chain) = (below.clone(), vec!["d", "c"]);
        let mut there = "z";
        vault.set(move |call, name| {
            // As soon as the last one is looked for, another one has come for it.
            if call == "size"
                && name == object_name(log, there)
                && let Some(next) = chain.pop()
            {
                put(&store, next);
                store.delete(&object_name(log, there)).unwrap();
                there = next;
            }
            Ok(())
        });
        assert_eq!(all(&vault, log).unwrap(), [pin("a"), pin("d")]);
        // A list in pieces: the new one is behind the piece that was read, and the old one goes before its piece is read.
        let store = below.clone();
        let mut is_first = true;
        vault.set(move |call, _| {
            if call == "list" && std::mem::take(&mut is_first) {
                store.delete(&object_name(log, "d")).unwrap();
            } else if call == "size" && store.size(&object_name(log, "b"))?.is_none() {
                put(&store, "b");
            }
            Ok(())
        });
        assert_eq!(all(&vault, log).unwrap(), [pin("a"), pin("b")]);
        // One goes each time.
        let store = below.clone();
        let mut made = 0;
        vault.set(move |call, name| {
            if call == "size" && name != object_name(log, "a") {
                made += 1;
                put(&store, &format!("x{made}"));
                store.delete(name).unwrap();
            }
            Ok(())
        });
        assert_eq!(all(&vault, log).unwrap_err().kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn pins_of_branches_have_names_of_their_own() {
        let name = branch_pin(LogId(0xab));
        check_name(&name).unwrap();
        assert_eq!(branch_of_pin(&name), Some(LogId(0xab)));
        for other in [
            "branch-",
            "branch-ab",
            "branch-0000000000000000000000000000000g",
            &name[1..],
            &format!("{name}0"),
        ] {
            assert_eq!(branch_of_pin(other), None, "{other}");
        }
    }

    #[test]
    fn names_are_bounded() {
        for good in ["a", "0", "before-upgrade.2", "a_b", &"x".repeat(64)] {
            check_name(good).unwrap();
        }
        for bad in ["", ".", "..", "-a", "_a", ".a", "A", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert_eq!(check_name(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }
}
