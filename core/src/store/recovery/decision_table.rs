//! The decision table of recovery: the action at the end of the chain of sound blocks. `docs/format.md` has the same
//! rows.
//!
//! Must not know: files. Its callers pass in what they saw.

/// The action at the end of the chain of sound blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The log is complete.
    Complete,
    /// A write that nothing proves durable, unfinished or damaged: truncate it.
    Torn,
    /// Bytes that may have been acknowledged are damaged: refuse to open.
    Corrupt,
}

/// The facts about the end of the chain of sound blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Break {
    /// The chain ends at the segment's end, or at zeros with no block of this segment after them.
    pub(crate) clean: bool,
    /// A later block of the same segment says that bytes from the break on were durable.
    pub(crate) proven_later: bool,
    /// The segment's successor has begun, or the segment has a footer.
    pub(crate) successor: bool,
    /// The chain has reached the position where the successor begins.
    pub(crate) reached: bool,
}

/// One row: the conditions (`None`: any value) and the verdict. The first row that matches counts.
pub(crate) struct Row {
    pub(crate) clean: Option<bool>,
    pub(crate) proven_later: Option<bool>,
    pub(crate) successor: Option<bool>,
    pub(crate) reached: Option<bool>,
    pub(crate) verdict: Verdict,
    pub(crate) why: &'static str,
}

/// The decision table of recovery.
pub(crate) static DECISIONS: [Row; 5] = [
    Row {
        clean: None,
        proven_later: None,
        successor: Some(true),
        reached: Some(true),
        verdict: Verdict::Complete,
        why: "the next segment continues where the sound blocks end",
    },
    Row {
        clean: None,
        proven_later: None,
        successor: Some(true),
        reached: Some(false),
        verdict: Verdict::Corrupt,
        why: "a segment begins only after the previous one is durable to its end",
    },
    Row {
        clean: None,
        proven_later: Some(true),
        successor: Some(false),
        reached: None,
        verdict: Verdict::Corrupt,
        why: "a later block says that these bytes were durable",
    },
    Row {
        clean: Some(true),
        proven_later: Some(false),
        successor: Some(false),
        reached: None,
        verdict: Verdict::Complete,
        why: "nothing was ever written after the sound blocks",
    },
    Row {
        clean: Some(false),
        proven_later: Some(false),
        successor: Some(false),
        reached: None,
        verdict: Verdict::Torn,
        why: "nothing proves that these bytes were durable: an unfinished or damaged write",
    },
];

/// Looks up a break in [`DECISIONS`].
pub(crate) fn decide(b: Break) -> &'static Row {
    let fits = |want: Option<bool>, is: bool| want.is_none_or(|w| w == is);
    let row = DECISIONS.iter().find(|r| {
        fits(r.clean, b.clean)
            && fits(r.proven_later, b.proven_later)
            && fits(r.successor, b.successor)
            && fits(r.reached, b.reached)
    });
    match row {
        Some(row) => row,
        None => unreachable!("the table covers every case; a test tries them all"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination has a row, and every row is reached by a combination.
    #[test]
    fn table_is_complete_and_every_row_is_needed() {
        let mut used = [0; DECISIONS.len()];
        for bits in 0..16u8 {
            let bit = |n: u8| bits >> n & 1 == 1;
            let row =
                decide(Break { clean: bit(0), proven_later: bit(1), successor: bit(2), reached: bit(3) });
            let n = DECISIONS.iter().position(|r| std::ptr::eq(r, row)).unwrap();
            used[n] += 1;
            if bit(1) && !bit(2) {
                assert_eq!(row.verdict, Verdict::Corrupt, "proven bytes are never cut");
            }
        }
        assert!(used.iter().all(|n| *n > 0), "{used:?}");
    }
}
