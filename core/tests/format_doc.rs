//! Checks `docs/format.md` against the code: its numbers, its tables of fields, the kinds of blocks, and the decision
//! table. The bytes themselves are pinned by `golden.rs`.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::fuzzing;
use std::collections::BTreeMap;

const DOC: &str = include_str!("../docs/format.md");

/// All tables of the page, by their heading: the cells of each row below the heading's rule.
fn tables() -> Vec<(Vec<&'static str>, Vec<Vec<&'static str>>)> {
    let cells = |line: &'static str| -> Vec<&'static str> {
        line.trim_matches('|').split('|').map(|c| c.trim().trim_matches('`')).collect()
    };
    let mut tables = Vec::new();
    let mut lines = DOC.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with('|') && lines.peek().is_some_and(|next| next.starts_with("|---")) {
            lines.next();
            let mut rows = Vec::new();
            while let Some(row) = lines.next_if(|l| l.starts_with('|')) {
                rows.push(cells(row));
            }
            tables.push((cells(line), rows));
        }
    }
    tables
}

/// The rows of the only table with these first columns.
fn table(heading: &[&str]) -> Vec<Vec<&'static str>> {
    let mut found: Vec<_> = tables().into_iter().filter(|(h, _)| h.starts_with(heading)).collect();
    assert_eq!(found.len(), 1, "tables with the heading {heading:?}");
    found.remove(0).1
}

#[test]
fn numbers_are_those_of_the_code() {
    let written: Vec<(String, u64)> = table(&["constant", "value"])
        .iter()
        .map(|row| (row[0].to_owned(), row[1].parse().unwrap()))
        .collect();
    let expected: Vec<_> = fuzzing::constants().iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
    assert_eq!(written, expected);
    for (bytes, limit) in [(64 << 20, "67,043,136"), (64 << 10, "65,280")] {
        assert_eq!(fuzzing::data_limit(bytes).to_string(), limit.replace(',', ""));
        assert!(DOC.contains(limit), "{limit}");
    }
}

/// Each field begins where the one before ends, and the last one ends where the structure does.
#[test]
fn fields_have_no_gaps_and_fill_their_structure() {
    let constants: BTreeMap<_, _> = fuzzing::constants().into_iter().collect();
    // In the order of the page. The opening's last fields have no fixed place.
    let structures = [
        "IDENTITY_BYTES",
        "SEGMENT_HEADER_BYTES",
        "BLOCK_HEADER_BYTES",
        "BATCH_HEADER_BYTES",
        "COMMAND_BYTES",
        "SET_OPTIONS_BYTES",
        "LOG_OPTION_BYTES",
        "HARD_STATE_BYTES",
        "",
        "MEMBERSHIP_BYTES",
        "MEMBER_BYTES",
        "TABLE_HEADER_BYTES",
        "SESSION_BYTES",
        "REMEMBERED_BYTES",
        "INDEX_ENTRY_BYTES",
        "FOOTER_BYTES",
    ];
    let layouts: Vec<_> = tables().into_iter().filter(|(h, _)| h.starts_with(&["offset", "size"])).collect();
    assert_eq!(layouts.len(), structures.len());
    for (structure, (_, rows)) in structures.iter().zip(layouts) {
        let mut at = 0;
        for row in &rows {
            let (Ok(offset), size) = (row[0].parse::<u64>(), row[1].parse::<u64>()) else { break };
            assert_eq!(offset, at, "{structure}: {row:?}");
            let Ok(size) = size else { break };
            let natural = [("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8), ("u128", 16)];
            if let Some((_, bytes)) = natural.iter().find(|(name, _)| *name == row[2]) {
                assert_eq!(size, *bytes, "{structure}: {row:?}");
            }
            at += size;
        }
        match constants.get(structure) {
            Some(bytes) => assert_eq!(at, *bytes, "{structure}"),
            None => assert_eq!(at, 52, "the fixed part of an opening, with the first length"),
        }
    }
}

/// The magics of the page are those of the golden files.
#[test]
fn magics_are_the_golden_files() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/");
    let files = [
        ("chiplogI", "log/chiplog.id"),
        ("chiplogS", "segment-header.bin"),
        ("CLB1", "block-data.bin"),
        ("chiplogF", "segment-footer.bin"),
    ];
    let magics: Vec<_> =
        DOC.lines().filter(|l| l.contains("| magic `")).filter_map(|l| l.split('`').nth(1)).collect();
    assert_eq!(magics, files.map(|(magic, _)| magic));
    for (magic, file) in files {
        assert!(std::fs::read(format!("{golden}{file}")).unwrap().starts_with(magic.as_bytes()), "{file}");
    }
}

#[test]
fn kinds_of_blocks_are_those_of_the_code() {
    let written: Vec<_> = table(&["kind", "name", "raft entry"])
        .iter()
        .map(|row| (row[0].parse::<u8>().unwrap(), row[1].replace(' ', "-"), row[2] == "yes"))
        .collect();
    let expected: Vec<_> =
        fuzzing::kinds().iter().map(|(code, name, entry)| (*code, (*name).to_owned(), *entry)).collect();
    assert_eq!(written, expected);
}

#[test]
fn decision_table_is_that_of_the_code() {
    let written = table(&["clean", "proven later", "successor", "reached"]);
    let expected: Vec<_> = fuzzing::decisions().iter().map(|row| row.to_vec()).collect();
    assert_eq!(written, expected);
}
