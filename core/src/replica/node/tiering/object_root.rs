//! The root of a log's objects: whether the object store is the one that has them, and can be used.
//!
//! Must not know: who leads.

use crate::error::{Error, ErrorKind, Result};
use crate::store::objects::names::{
    begin_number, begins, folder, not_there, object_number, root_name, root_text,
};
use crate::types::LogId;
use crate::vault::Vault;

/// Checks that the object store is the one with this log's objects. `has_begun`: the log has, or had, objects, so it has to be
/// there. Else it is made.
///
/// The first object is put after a command in the log, so a log that has not begun owns none. One that is there nevertheless belongs to
/// another history: the log was restored with its old id. By that history's begins this log's objects would count as discarded, and
/// that history's objects would count as this log's own.
///
/// # Errors
/// `Diverged`: the store has another history's objects. A replica that has not heard of the first object yet finds out by asking again.
/// `Unavailable`: the root is not there. Those of the store.
pub(super) fn check_root(vault: &dyn Vault, log: LogId, has_begun: bool) -> Result<()> {
    let (name, text) = (root_name(log), root_text(log));
    if has_begun {
        check_there(vault, log)?;
    } else {
        vault.create(&name, text.clone().into())?;
        check_empty(vault, log)?;
    }
    let there = vault.size(&name)?.unwrap_or(0);
    if there != text.len() as u64 || vault.get(&name, 0..there)? != text {
        let what = format!("{name} in the object store is not of this log: use another location");
        return Err(Error::new(ErrorKind::Diverged, what));
    }
    Ok(())
}

fn check_empty(vault: &dyn Vault, log: LogId) -> Result<()> {
    let is_its = |name: &str| object_number(log, name).or_else(|| begin_number(log, name)).is_some();
    for folder in [folder(log), begins(log)] {
        if let Some(found) = vault.list(&folder)?.iter().find(|found| is_its(&found.name)) {
            let what = format!(
                "{} in the object store is of another history of this log: the log was restored with its old id, or this replica has not \
                 heard of its first object yet. Use another location, or restore the log with a new id",
                found.name
            );
            return Err(Error::new(ErrorKind::Diverged, what));
        }
    }
    Ok(())
}

/// Checks that the object store is still the one with this log's objects. A directory that is not mounted looks like an empty one,
/// and an object that went there would be lost once it is mounted again.
pub(super) fn check_there(vault: &dyn Vault, log: LogId) -> Result<()> {
    let name = root_name(log);
    if vault.size(&name)?.is_some() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unavailable, not_there(&name)))
}

/// Checks that the object store can be read, and is this log's. If it cannot, that says nothing of one object. The right to look
/// for objects is not the right to read them: so the root is read, too.
pub(super) fn check_usable(vault: &dyn Vault, log: LogId) -> Result<()> {
    let read = || vault.get(&root_name(log), 0..1).map(drop);
    check_there(vault, log)
        .and_then(|()| read())
        .map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))
}
