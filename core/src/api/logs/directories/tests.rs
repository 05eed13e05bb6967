//! Tests of the directories of groups: found, fewest first, two places, disks that are not mounted, crashes.

use super::*;
use std::fs;
use tempfile::TempDir;

/// A directory of named logs, and further ones.
struct Dirs {
    home: TempDir,
    disks: Vec<TempDir>,
}

impl Dirs {
    fn new(disks: usize) -> Self {
        let new = || TempDir::new().unwrap();
        Self { home: new(), disks: (0..disks).map(|_| new()).collect() }
    }

    fn disk(&self, n: usize) -> PathBuf {
        self.disks[n].path().to_owned()
    }

    /// As a new process sees them.
    fn open(&self) -> GroupDirectories {
        self.listed(&(0..self.disks.len()).collect::<Vec<_>>())
    }

    fn listed(&self, disks: &[usize]) -> GroupDirectories {
        let further: Vec<PathBuf> = disks.iter().map(|n| self.disk(*n)).collect();
        GroupDirectories::new(self.home.path(), &further).unwrap()
    }

    fn list(&self) -> DirectoryList {
        DirectoryList::parse(&fs::read(self.home.path().join(DIRECTORIES_FILE)).unwrap()).unwrap()
    }
}

/// Makes a group where it belongs, and returns its directory.
fn make(directories: &GroupDirectories, group: u32) -> PathBuf {
    let path = directories.place(group).unwrap();
    fill(&path);
    path
}

fn fill(group: &Path) {
    fs::create_dir_all(group).unwrap();
    fs::write(group.join("chiplog.id"), "x").unwrap();
}

/// Moves all files elsewhere, as if the disk was not mounted; returns their new directory.
fn unmount(disk: &Path) -> TempDir {
    let away = TempDir::new().unwrap();
    mount(disk, away.path());
    away
}

fn mount(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::rename(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

fn refused(found: Result<Option<PathBuf>>) -> String {
    let error = found.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Diverged, "{error}");
    error.to_string()
}

/// The only fault, and whether it is of a directory that had groups.
fn fault(directories: &GroupDirectories) -> (String, bool) {
    let faults = directories.faults().unwrap();
    assert_eq!(faults.len(), 1, "{faults:?}");
    (faults[0].error.to_string(), faults[0].was_used)
}

#[test]
fn new_group_goes_to_the_directory_with_the_fewest() {
    let dirs = Dirs::new(2);
    let open = dirs.open();
    let at: Vec<PathBuf> = (1..=5).map(|group| make(&open, group)).collect();
    let expected = [(0, 1), (1, 2), (0, 3), (1, 4), (0, 5)];
    assert_eq!(at, expected.map(|(disk, group)| group_dir(&dirs.disk(disk), group)));
    assert_eq!(open.groups().unwrap(), (1..=5).collect());
    let again = dirs.open();
    assert_eq!(again.find(4).unwrap(), Some(at[3].clone()));
    assert_eq!(again.place(4).unwrap(), at[3], "it exists");
    assert_eq!(again.find(6).unwrap(), None);
    assert!(again.faults().unwrap().is_empty());
}

#[test]
fn without_further_directories_nothing_is_noted() {
    let dirs = Dirs::new(0);
    assert_eq!(make(&dirs.open(), 1), group_dir(dirs.home.path(), 1));
    assert_eq!(dirs.open().find(1).unwrap(), Some(group_dir(dirs.home.path(), 1)));
    assert_eq!(fs::read_dir(dirs.home.path()).unwrap().count(), 1);
}

#[test]
fn group_of_the_data_directory_is_found_when_disks_are_added() {
    let dirs = Dirs::new(2);
    let old = make(&dirs.listed(&[]), 1);
    let open = dirs.open();
    assert_eq!(open.find(1).unwrap(), Some(old));
    assert_eq!(make(&open, 2), group_dir(&dirs.disk(0), 2), "groups elsewhere do not count");
    fs::create_dir(dirs.disk(1).join("group-07")).unwrap();
    fs::create_dir(dirs.disk(1).join("group-7.unused-1")).unwrap();
    fs::create_dir(dirs.disk(1).join("lost+found")).unwrap();
    assert_eq!(make(&open, 3), group_dir(&dirs.disk(1), 3));
}

#[test]
fn group_in_two_directories_is_refused_with_both() {
    let dirs = Dirs::new(2);
    let open = dirs.open();
    let first = make(&open, 1);
    let second = group_dir(&dirs.disk(1), 1);
    fill(&second);
    let what = refused(open.find(1));
    assert!(what.contains(first.to_str().unwrap()) && what.contains(second.to_str().unwrap()), "{what}");
    assert_eq!(open.place(1).unwrap_err().kind(), ErrorKind::Diverged);
    fs::remove_dir_all(first).unwrap();
    assert_eq!(open.find(1).unwrap(), Some(second), "it was moved");
}

#[test]
fn unmounted_disk_hides_its_groups_and_no_others() {
    let dirs = Dirs::new(2);
    let open = dirs.open();
    let at: Vec<PathBuf> = (1..=2).map(|group| make(&open, group)).collect();
    let away = unmount(&dirs.disk(0));
    for directories in [dirs.open(), dirs.listed(&[0, 1])] {
        let what = refused(directories.find(1));
        assert!(
            what.contains("mount the right one") && what.contains(dirs.disk(0).to_str().unwrap()),
            "{what}"
        );
        assert!(directories.place(1).is_err());
        assert_eq!(directories.find(2).unwrap(), Some(at[1].clone()));
        assert_eq!(directories.find(3).unwrap(), None);
        let (what, was_used) = fault(&directories);
        assert!(was_used && what.contains("(with group 1)"), "{what}");
    }
    assert_eq!(make(&open, 3), group_dir(&dirs.disk(1), 3), "the first one cannot be used");
    mount(away.path(), &dirs.disk(0));
    assert_eq!(open.find(1).unwrap(), Some(at[0].clone()));
    assert!(open.faults().unwrap().is_empty());
    fs::remove_dir_all(dirs.disk(1)).unwrap();
    assert!(fault(&open).1, "a missing directory that was used");
    refused(open.find(2));
}

/// A stale copy of the group, in the directory over which its disk is not mounted, or in another one.
#[test]
fn copy_of_a_group_is_not_taken_for_one_on_an_unmounted_disk() {
    let dirs = Dirs::new(2);
    let open = dirs.open();
    make(&open, 1);
    let _away = unmount(&dirs.disk(0));
    fill(&group_dir(&dirs.disk(0), 1));
    refused(open.find(1));
    fill(&group_dir(&dirs.disk(1), 1));
    let what = refused(open.find(1));
    assert!(what.contains("one is in"), "{what}");
    let without = dirs.listed(&[1]);
    assert_eq!(
        without.find(1).unwrap(),
        Some(group_dir(&dirs.disk(1), 1)),
        "the list says that the disk is gone"
    );
    assert!(without.faults().unwrap().is_empty());
}

#[test]
fn directory_that_is_not_listed_any_more_is_missed() {
    let dirs = Dirs::new(2);
    let open = dirs.open();
    let path = make(&open, 1);
    make(&open, 2);
    for directories in [dirs.listed(&[1]), dirs.listed(&[])] {
        let what = refused(directories.find(1));
        assert!(what.contains("list it again"), "{what}");
        assert!(directories.faults().unwrap().iter().all(|fault| fault.was_used));
    }
    let home = group_dir(dirs.home.path(), 1);
    fs::rename(path, &home).unwrap();
    assert_eq!(dirs.listed(&[1]).find(1).unwrap(), Some(home), "it was moved by hand");
    assert_eq!(dirs.list().directories.len(), 1, "and its directory is not in use any more");
    assert!(dirs.listed(&[1]).faults().unwrap().is_empty());
}

#[test]
fn disks_are_known_by_their_markers_and_not_by_their_paths() {
    let dirs = Dirs::new(3);
    let open = dirs.listed(&[0, 1]);
    make(&open, 1);
    make(&open, 2);
    // The disks change places, and then one of them goes to a third path.
    let (first, second) = (unmount(&dirs.disk(0)), unmount(&dirs.disk(1)));
    mount(first.path(), &dirs.disk(1));
    mount(second.path(), &dirs.disk(0));
    assert!(open.faults().unwrap().is_empty());
    assert_eq!(open.find(1).unwrap(), Some(group_dir(&dirs.disk(1), 1)));
    assert_eq!(open.find(2).unwrap(), Some(group_dir(&dirs.disk(0), 2)));
    mount(&dirs.disk(1), &dirs.disk(2));
    let moved = dirs.open();
    assert_eq!(moved.find(1).unwrap(), Some(group_dir(&dirs.disk(2), 1)));
    assert!(moved.faults().unwrap().is_empty(), "the empty directory is a new one");
    // One that is mounted in the place of another one.
    let (_third, second) = (unmount(&dirs.disk(2)), unmount(&dirs.disk(0)));
    mount(second.path(), &dirs.disk(2));
    refused(moved.find(1));
    assert_eq!(moved.find(2).unwrap(), Some(group_dir(&dirs.disk(2), 2)));
}

#[test]
fn directory_of_other_logs_is_refused() {
    let (dirs, others) = (Dirs::new(1), Dirs::new(0));
    make(&dirs.open(), 1);
    let open = GroupDirectories::new(others.home.path(), &[dirs.disk(0)]).unwrap();
    let (what, was_used) = fault(&open);
    assert!(!was_used && what.contains("used by other named logs"), "{what}");
    assert_eq!(open.find(1).unwrap(), None);
    assert!(open.place(1).unwrap_err().to_string().contains("used by other named logs"));
}

#[test]
fn copy_of_a_disk_beside_it_is_refused() {
    let dirs = Dirs::new(2);
    make(&dirs.open(), 1);
    fs::copy(dirs.disk(0).join(MARKER_FILE), dirs.disk(1).join(MARKER_FILE)).unwrap();
    let faults = dirs.open().faults().unwrap();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].error.to_string().contains("is a copy of the other"), "{faults:?}");
    refused(dirs.open().find(1));
}

#[test]
fn directory_that_cannot_be_one_of_groups_is_refused() {
    let dirs = Dirs::new(1);
    let disk = dirs.disk(0);
    let file = disk.join("file");
    fs::write(&file, "x").unwrap();
    let link = dirs.home.path().with_extension("link");
    std::os::unix::fs::symlink(dirs.home.path(), &link).unwrap();
    for (path, why) in [
        (disk.join("missing"), "does not exist: mount its disk"),
        (file, "cannot open directory"),
        (link.clone(), "the directory of the logs"),
    ] {
        let open = GroupDirectories::new(dirs.home.path(), std::slice::from_ref(&path)).unwrap();
        let (what, was_used) = fault(&open);
        assert!(!was_used && what.contains(why) && what.contains(path.to_str().unwrap()), "{what}");
        assert!(open.place(1).unwrap_err().to_string().contains(why));
    }
    fs::remove_file(link).unwrap();
    drop(crate::Log::open(&disk, crate::Options::with_segment_bytes(1 << 20)).unwrap());
    assert!(fault(&dirs.open()).0.contains("a log on its own"));
    let many = vec![disk; DIRECTORIES_MAX + 1];
    assert!(GroupDirectories::new(dirs.home.path(), &many).unwrap_err().to_string().contains("up to 64"));
}

/// A crash between any two steps of [`GroupDirectories::place`], and before the group is made.
#[test]
fn crash_while_a_group_is_placed_leaves_nothing_that_is_refused() {
    let dirs = Dirs::new(2);
    let made = dirs.open().place(1).unwrap();
    let (list, marker) = (dirs.home.path().join(DIRECTORIES_FILE), dirs.disk(0).join(MARKER_FILE));
    let steps: [(Option<DirectoryList>, bool); 3] = [
        (Some(dirs.list()), true),
        (Some(dirs.list().with_group(1, None)), true),
        (Some(dirs.list().with_group(1, None)), false),
    ];
    let marked = fs::read(&marker).unwrap();
    for (left, is_marked) in steps {
        fs::write(&list, left.unwrap().encode()).unwrap();
        fs::write(list.with_file_name(format!("{DIRECTORIES_FILE}{UNFINISHED}")), "half").unwrap();
        match is_marked {
            true => fs::write(&marker, &marked).unwrap(),
            false => fs::remove_file(&marker).unwrap(),
        }
        fs::write(dirs.disk(0).join(format!("{MARKER_FILE}{UNFINISHED}")), "half").unwrap();
        let open = dirs.open();
        assert!(open.faults().unwrap().is_empty());
        assert_eq!(open.find(1).unwrap(), None);
        assert_eq!(open.place(1).unwrap(), made);
        assert_eq!(dirs.list().groups.len(), 1);
    }
    fs::create_dir(&made).unwrap(); // its first file is missing
    assert_eq!(dirs.open().find(1).unwrap(), None);
}

#[test]
fn damaged_files_are_reported() {
    let dirs = Dirs::new(1);
    make(&dirs.open(), 1);
    let marker = dirs.disk(0).join(MARKER_FILE);
    let written = fs::read(&marker).unwrap();
    fs::write(&marker, &written[..20]).unwrap();
    assert!(fault(&dirs.open()).0.contains("chiplog.groups is corrupt"));
    refused(dirs.open().find(1));
    fs::write(&marker, written).unwrap();
    fs::write(dirs.home.path().join(DIRECTORIES_FILE), "chiplog directories\nformat 2\n").unwrap();
    let error = dirs.open().find(1).unwrap_err();
    assert!(error.to_string().contains("later chiplog"), "{error}");
}
