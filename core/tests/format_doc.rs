//! Checks `docs/format.md` against the code: its numbers, its tables of fields, the kinds of blocks, the operations of
//! commands, the parts of an opening, and the decision table. The bytes themselves are pinned by `golden.rs`.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::fuzzing;
use std::collections::{BTreeMap, BTreeSet};

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
        "TABLE_FIXED_BYTES",
        "RUN_BYTES",
        "BATCH_HEADER_BYTES",
        "REFERENCE_BYTES",
        "COMMAND_BYTES",
        "LONG_COMMAND_BYTES",
        "CUT_COMMAND_BYTES",
        "STORED_COMMAND_BYTES",
        "MOVE_ROWS_COMMAND_BYTES",
        "BEGIN_COMMAND_BYTES",
        "SET_OPTIONS_BYTES",
        "LOG_OPTION_BYTES",
        "HARD_STATE_BYTES",
        "",
        "LOGS_HEADER_BYTES",
        "LOG_BYTES",
        "LOG_OPTION_BYTES",
        "OBJECTS_HEADER_BYTES",
        "OBJECT_BYTES",
        "ANCESTOR_BYTES",
        "OLDER_ROWS_BYTES",
        "MEMBERSHIP_BYTES",
        "MEMBER_BYTES",
        "TABLE_HEADER_BYTES",
        "SESSION_BYTES",
        "REMEMBERED_BYTES",
        "INDEX_ENTRY_BYTES",
        "FOOTER_BYTES",
        "CATALOGUE_RECORD_BYTES",
        "PAYLOAD_HEADER_BYTES",
        "SEGMENT_HEADER_BYTES", // of a sorted copy
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

/// The operations of the page, with these lengths, are those that the decoder accepts, and no others are.
#[test]
fn operations_of_commands_are_those_of_the_code() {
    let rows = table(&["operation", "name", "version", "body"]);
    let written: BTreeSet<(u64, usize)> = rows
        .iter()
        .filter(|row| row[2] != "reserved" && row[0] != "11")
        .map(|row| (row[0].parse().unwrap(), row[3].parse().unwrap()))
        .collect();
    let numbers: BTreeSet<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(numbers.len(), 13, "each number from 1 to 13 has a row: {numbers:?}");
    for operation in 0..=14u64 {
        for words in 1..=10usize {
            let mut body = vec![operation, 7];
            body.resize(words, 1);
            if operation == 8 && words > 2 {
                body[2] = 0x2000_0001_0000; // the sizes of a small file
            }
            let body: Vec<u8> = body.iter().flat_map(|word| word.to_le_bytes()).collect();
            let is_written = written.contains(&(operation, body.len()));
            assert_eq!(
                fuzzing::command(&body).is_some(),
                is_written,
                "{operation} with {} bytes",
                body.len()
            );
        }
    }
    let no_options = [11u64, 0, 0].map(u64::to_le_bytes).concat();
    assert!(fuzzing::command(&no_options).is_some());
    let of_a_log = [11u64, 0, 7].map(u64::to_le_bytes).concat();
    assert!(fuzzing::command(&of_a_log).is_some(), "options of one log of a group");
    let of_no_log = [11u64, 0, 1 << 32].map(u64::to_le_bytes).concat();
    assert!(fuzzing::command(&of_no_log).is_none(), "an impossible number of a log");
    for (operation, number) in [(4u64, 1u64 << 32), (5, 1 << 32), (2, 0)] {
        let body = match operation {
            2 => vec![2, 60_000, number],
            4 => vec![4, number, 1],
            _ => vec![5, number],
        };
        let body: Vec<u8> = body.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(fuzzing::command(&body).is_none(), "{operation} of log {number}");
    }
}

/// An opening has the parts of the page, and no more; the last one is not empty, unless it is of version 1.
#[test]
fn parts_of_an_opening_are_those_of_the_code() {
    let rows = table(&["part", "version", "there"]);
    let versions: Vec<_> = rows.iter().map(|row| row[1]).collect();
    assert_eq!(versions, ["1", "1", "2", "2", "3"]);
    for parts in 0..=versions.len() {
        for is_empty in [false, true] {
            let mut body = vec![0; 48];
            for part in 1..=parts {
                let length = if is_empty && part == parts { 0 } else { 16u32 };
                body.extend_from_slice(&length.to_le_bytes());
                body.resize(body.len() + length as usize, 0);
            }
            let version = parts.checked_sub(1).map(|last| versions[last]);
            let is_accepted = parts >= 2 && (version == Some("1") || !is_empty);
            let found = fuzzing::opening(&body).is_some();
            assert_eq!(found, is_accepted, "{parts} parts, the last one empty: {is_empty}");
        }
    }
}

/// The bounds of the log table and of the catalogue's records.
#[test]
fn log_table_and_catalogue_are_those_of_the_code() {
    let table = |log: [u64; 7]| {
        let mut bytes = (1u64 | 9 << 32).to_le_bytes().to_vec(); // one log, the newest that was opened was 9
        log.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        bytes
    };
    let accepts = |log| fuzzing::logs(&table(log)).is_some();
    let sealed = 1u64 << 32;
    assert!(accepts([7, 1, 1, 0, 0, 0, 0]) && accepts([7 | sealed, 3, 5, 9, 9, 0, 0]));
    let empty = [0, 0, 0, 0, 9, 0, 0, 0];
    assert_eq!(fuzzing::logs(&empty).map(|empty| empty.len()), Some(8), "a shared group without logs");
    assert!(fuzzing::logs(&[0; 8]).is_none(), "no log was ever opened");
    for refused in [
        [0, 1, 1, 0, 0, 0, 0],           // number 0
        [10, 1, 1, 0, 0, 0, 0],          // beyond the newest
        [7 | 2 << 32, 1, 1, 0, 0, 0, 0], // an unknown flag
        [7, 0, 1, 0, 0, 0, 0],           // a first index of 0
        [7, 2, 1, 0, 0, 0, 0],           // its end before its beginning
        [7, 1, 1, 0, 0, 1, 0],           // options of its own
        [7, 1, 1, 0, 0, 0, 1],
    ] {
        assert!(!accepts(refused), "{refused:?}");
    }
    let record = |change: u8, name: &str| {
        let mut bytes = vec![0; 24];
        (bytes[0], bytes[4]) = (change, 9);
        bytes.extend_from_slice(name.as_bytes());
        fuzzing::catalogue_record(&bytes).is_some_and(|again| again == bytes)
    };
    assert!(record(1, "orders/12") && record(2, "") && record(3, "") && record(4, ""));
    let nodes = |nodes: &[u64]| {
        String::from_utf8(nodes.iter().flat_map(|node| node.to_le_bytes()).collect()).unwrap()
    };
    let sixteen: Vec<u64> = (1..=16).collect();
    assert!(record(4, &nodes(&[1, 3])) && record(4, &nodes(&sixteen)));
    for wrong in [&[0, 1][..], &[3, 1], &[3, 3], &[&sixteen[..], &[17]].concat()] {
        assert!(!record(4, &nodes(wrong)), "{wrong:?}");
    }
    for (change, name) in [(0, "a"), (1, ""), (1, ".."), (1, "a/01"), (2, "a"), (3, "a"), (4, "a"), (5, "")] {
        assert!(!record(change, name), "{change} {name:?}");
    }
    assert!(record(1, &"x".repeat(249)) && !record(1, &"x".repeat(250)));
    // A part of a snapshot: its number is 9.
    let part = |next: u64, parts: u64| nodes(&[next, parts]);
    assert!(record(5, &part(1, 10)));
    assert!(!record(5, &part(0, 10)) && !record(5, &part(1, 9)) && !record(5, &format!("{}x", part(1, 10))));
}

#[test]
fn reserved_kind_and_codec_are_refused() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/");
    let mut block = std::fs::read(format!("{golden}block-mixed.bin")).unwrap();
    assert!(fuzzing::fix_block(&mut block, 5) && fuzzing::block(&block, 5).is_some());
    block[60] = 9;
    fuzzing::fix_block(&mut block, 5);
    assert!(fuzzing::block(&block, 5).is_none(), "kind 9");
    let mut batch = std::fs::read(format!("{golden}batch-single.bin")).unwrap();
    assert!(fuzzing::batch(&batch).is_some());
    batch[34] = 3;
    assert!(!fuzzing::fix_batch(&mut batch), "codec 3");
}

#[test]
fn decision_table_is_that_of_the_code() {
    let written = table(&["clean", "proven later", "successor", "reached"]);
    let expected: Vec<_> = fuzzing::decisions().iter().map(|row| row.to_vec()).collect();
    assert_eq!(written, expected);
}
