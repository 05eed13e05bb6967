//! Tests of files that are set aside and replaced.
#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use crate::disk::sim::{Call, Fault, Landed, SimDisk, Trouble};

const NUMBER: u64 = 3;
const OLD: [u8; 6000] = [7; 6000];

/// A disk with a segment file that is too short.
fn disk() -> SimDisk {
    let disk = SimDisk::default();
    disk.set_chance(1);
    let file = disk.create(&file_name(NUMBER)).unwrap();
    file.write_at(0, &[IoSlice::new(&OLD)]).unwrap();
    file.sync().unwrap();
    disk.sync_dir().unwrap();
    disk
}

fn aside() -> String {
    format!("{NUMBER:020}{ASIDE}")
}

/// In a power cut the replacing file kept its name and the move aside was lost: the old contents were gone.
#[test]
fn file_set_aside_survives_every_power_cut() {
    let disk = disk();
    let before = disk.history_len();
    set_aside(&disk, NUMBER).unwrap();
    assert!(make_whole(&disk, LogId(1), NUMBER, SEGMENT_BYTES_MIN).unwrap());
    let history = disk.history();
    let mut taken = 0;
    for state in history.states().skip(before) {
        for image in state.crashes(4096, 200, 1) {
            let is_old = |name: &str| image.file(name).is_some_and(|file| file == OLD);
            assert!(is_old(&file_name(NUMBER)) || is_old(&aside()), "{image:?}");
            taken += u32::from(is_old(&aside()) && image.file(&file_name(NUMBER)).is_some());
        }
    }
    assert!(taken > 0, "another file replaced it");
}

/// Before, a file that was aside and could not be opened, for lack of descriptors, counted as missing, and another file
/// took its name.
#[test]
fn first_file_aside_stays_if_it_cannot_be_opened() {
    let disk = disk();
    set_aside(&disk, NUMBER).unwrap();
    assert!(make_whole(&disk, LogId(1), NUMBER, SEGMENT_BYTES_MIN).unwrap());
    let trouble = Trouble::Eio(Landed::Nothing);
    disk.plan(Fault { call: Some(Call::Open), nth: 1, lasting: false, trouble });
    assert!(set_aside(&disk, NUMBER).is_err());
    set_aside(&disk, NUMBER).unwrap();
    let image = disk.visible();
    assert_eq!(image.file(&aside()).unwrap(), OLD);
    assert!(image.file(&file_name(NUMBER)).is_none());
}
