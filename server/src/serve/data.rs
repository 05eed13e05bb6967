//! Data: the check of a server's data directory before anything is written into it.

use super::groups::NAMED;
use crate::common::failure::Result;
use crate::connect::directory::{check_no_backup, check_no_others};
use std::path::Path;

/// Checks that a server may write into its data directory.
///
/// # Errors
/// It is a backup, or it has other files and no replica.
pub(super) fn check_data(data: &Path) -> Result<()> {
    check_no_backup(data)?;
    let instead = format!(
        "give an empty or a new one, which may be below it, such as {}",
        data.join("chiplog").display()
    );
    check_no_others(data, |path| path.ends_with(NAMED), &instead)
}
