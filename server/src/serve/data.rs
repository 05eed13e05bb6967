//! Data: the check of a server's data directory before anything is written into it.

use super::config::Config;
use super::groups::NAMED;
use crate::common::failure::Result;
use crate::connect::directory::{check_no_backup, check_no_others};
use chiplog_tier::local_directory;
use std::path::{Path, PathBuf, absolute};

/// Checks that a server may write into its data directory.
///
/// # Errors
/// It is a backup, or it has other files and no replica.
pub(super) fn check_data(config: &Config) -> Result<()> {
    let data = &config.data;
    check_no_backup(data)?;
    let instead = format!(
        "give an empty or a new one, which may be below it, such as {}",
        data.join("chiplog").display()
    );
    let store = local_directory(&config.object_store);
    let is_own = |path: &Path| {
        // Such as .snapshot of a file system.
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        is_hidden || path.ends_with(NAMED) || store.as_ref().is_some_and(|store| is_above(path, store))
    };
    check_no_others(data, is_own, &instead)
}

/// Whether `path` is `below`, or a directory above it.
fn is_above(path: &Path, below: &Path) -> bool {
    let forms = |path: &Path| -> Vec<PathBuf> {
        [absolute(path), path.canonicalize()].into_iter().flatten().collect()
    };
    forms(below).iter().any(|below| forms(path).iter().any(|path| below.starts_with(path)))
}
