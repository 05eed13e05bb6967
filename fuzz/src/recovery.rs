//! Opens a whole directory of damaged files.
//!
//! The input is a list of changes to the golden log (`core/tests/golden/log`), 8 bytes each: bits flipped, sectors
//! lost, swapped or misdirected, files cut short, lost, doubled. Some correct the checksums, as a malicious writer
//! would; then the contents are not compared with the originals.
//!
//! After any changes: no panic, no hang. Files that are reported as corrupt are left as they were. The records served
//! are consecutive and, unless checksums were forged, right. Records appended after a recovery survive the next one.

use chiplog::disk::sim::{Damage, Image, SimDisk};
use chiplog::{Clock, ErrorKind, Index, Log, Options, ReadMode, Start, Timestamp, fuzzing};
use std::sync::Arc;

const FILES: [(&str, &[u8]); 7] = [
    ("00000000000000000001.seg", include_bytes!("../../core/tests/golden/log/00000000000000000001.seg")),
    ("00000000000000000002.seg", include_bytes!("../../core/tests/golden/log/00000000000000000002.seg")),
    ("00000000000000000003.seg", include_bytes!("../../core/tests/golden/log/00000000000000000003.seg")),
    ("00000000000000000004.seg", include_bytes!("../../core/tests/golden/log/00000000000000000004.seg")),
    ("00000000000000000005.seg", include_bytes!("../../core/tests/golden/log/00000000000000000005.seg")),
    ("00000000000000000006.seg", include_bytes!("../../core/tests/golden/log/00000000000000000006.seg")),
    ("chiplog.id", include_bytes!("../../core/tests/golden/log/chiplog.id")),
];

/// More changes than this find nothing new.
const STROKES_MAX: usize = 16;

/// The golden log's record `n`; the same function is in `core/tests/golden.rs`.
fn record(n: u64) -> Vec<u8> {
    format!("record {n}, ").into_bytes().repeat((n % 60) as usize)
}

#[derive(Debug)]
struct Then;

impl Clock for Then {
    fn now(&self) -> Timestamp {
        Timestamp(1_700_000_006_000)
    }
}

fn options() -> Options {
    Options::with_segment_bytes(64 << 10)
        .clock(Arc::new(Then))
        .session_window(16)
        .sessions_max(16)
        .read_mode(ReadMode::Read)
}

/// Applies one change. Returns true if it forged a checksum.
fn strike(image: &mut Image, stroke: [u8; 8]) -> bool {
    let [how, which, a, b, c, d, e, f] = stroke;
    let (name, golden) = FILES[which as usize % FILES.len()];
    let place = usize::from(u16::from_le_bytes([a, b])) % golden.len();
    let other = usize::from(u16::from_le_bytes([c, d])) % golden.len();
    let number = u64::from_le_bytes([c, d, e, f, 0, 0, 0, 0]);
    let damage = match how % 10 {
        0 => Damage::FlipBit { bit: place as u64 * 8 + u64::from(c % 8) },
        1 => Damage::Overwrite { offset: place as u64, bytes: vec![c; 1 + usize::from(d) % 64] },
        2 => Damage::ZeroSector { sector: place / 512 },
        3 => Damage::SwapSectors { a: place / 512, b: other / 512 },
        4 => Damage::MisdirectSector { from: place / 512, to: other / 512 },
        5 => Damage::Shorten { len: place as u64 },
        6 => {
            image.remove(name);
            return false;
        }
        7 => {
            // The name of any segment, also of a missing one.
            image.copy(name, &format!("{:020}.seg", number % 10));
            return false;
        }
        _ => return forge(image, name, place, number),
    };
    image.damage(name, &damage);
    false
}

/// Writes a number into a block, header or footer and corrects its checksum.
fn forge(image: &mut Image, name: &str, place: usize, number: u64) -> bool {
    let Some(mut file) = image.file(name).filter(|f| f.len() == 64 << 10) else { return false };
    let id = u64::from_le_bytes(file[48..56].try_into().unwrap_or_default());
    let field = place % 16 * 4;
    let put = |bytes: &mut [u8]| bytes[field..field + 4].copy_from_slice(&(number as u32).to_le_bytes());
    if place < 4096 {
        put(&mut file[..64]);
        let crc = fuzzing::crc32c(&file[12..4096]);
        file[8..12].copy_from_slice(&crc.to_le_bytes());
    } else if place >= file.len() - 128 {
        let at = file.len() - 128;
        put(&mut file[at..]);
        let crc = fuzzing::crc32c(&file[at + 12..]);
        file[at + 8..at + 12].copy_from_slice(&crc.to_le_bytes());
    } else {
        // The block that begins before the position, if there is one.
        let starts = (4096..=place & !63).rev().step_by(64);
        let Some(at) = starts.map(|at| at & !63).find(|at| file[*at..*at + 4] == *b"CLB1") else {
            return false;
        };
        put(&mut file[at..at + 64]);
        fuzzing::fix_block(&mut file[at..], id);
    }
    image.insert(name, &file);
    true
}

/// Runs the target; see the module.
pub fn recovery(input: &[u8]) {
    let mut image = Image::default();
    for (name, bytes) in FILES {
        image.insert(name, bytes);
    }
    let (strokes, _) = input.as_chunks::<8>();
    let mut forged = false;
    for stroke in strokes.iter().take(STROKES_MAX) {
        forged |= strike(&mut image, *stroke);
    }
    let disk = SimDisk::new(image.clone());
    let log = match Log::open_on(Arc::new(disk.clone()), options()) {
        Ok(log) => log,
        Err(e) => {
            if e.kind() == ErrorKind::Corrupt {
                let after = disk.visible();
                for name in image.names() {
                    assert_eq!(
                        after.file(name),
                        image.file(name),
                        "{name} was changed, and then called corrupt: {e}"
                    );
                }
            }
            return;
        }
    };
    let status = log.status();
    assert!(status.first_index <= status.last_index.next());
    read(&log, forged);
    let appended = match log.append(b"after") {
        Ok(index) => index,
        Err(_) if forged => return,
        Err(e) => panic!("a recovered log takes no append: {e}"),
    };
    assert_eq!(appended, status.last_index.next());
    drop(log);
    let again = match Log::open_on(Arc::new(disk), options()) {
        Ok(log) => log,
        Err(_) if forged => return,
        Err(e) => panic!("a recovered log does not open again: {e}"),
    };
    assert_eq!(again.last_index(), appended);
    match again.read(appended) {
        Ok(found) => assert_eq!(found.data[..], b"after"[..]),
        Err(e) => assert!(forged, "what was appended after recovery is lost: {e}"),
    }
}

/// Reads the whole log: records in order, right ones if nothing was forged, and named errors only.
fn read(log: &Log, forged: bool) {
    let Ok(mut reader) = log.reader(Start::First) else { return };
    let mut expected = reader.position();
    loop {
        match reader.next_record() {
            Ok(Some(found)) => {
                assert_eq!(found.index, expected);
                if !forged && found.index <= Index(600) {
                    assert_eq!(found.data, record(found.index.get()), "record {expected} is served wrong");
                }
                expected = expected.next();
            }
            Ok(None) => break,
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Io), "{e:?}");
                return;
            }
        }
    }
    assert_eq!(expected, log.last_index().next(), "the reader ends before the log does");
}
