//! A vault in memory, for tests and examples.

use super::{ObjectInfo, Vault, check_name, check_prefix, check_range};
use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A [`Vault`] in memory. Its objects are gone with it. For tests and examples; `Send + Sync`, never blocks.
///
/// ```
/// use chiplog::vault::{MemoryVault, Vault};
/// let vault = MemoryVault::default();
/// assert!(vault.create("root", "first".into())?);
/// assert!(!vault.create("root", "second".into())?);
/// assert_eq!(vault.list("")?[0].name, "root");
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct MemoryVault {
    objects: Mutex<BTreeMap<String, Bytes>>,
}

impl MemoryVault {
    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Vault for MemoryVault {
    fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
        check_name(name)?;
        self.objects().insert(name.to_owned(), pieces.concat().into());
        Ok(())
    }

    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        check_name(name)?;
        let mut objects = self.objects();
        let is_new = !objects.contains_key(name);
        if is_new {
            objects.insert(name.to_owned(), bytes);
        }
        Ok(is_new)
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        check_name(name)?;
        check_range(name, &range)?;
        let objects = self.objects();
        let object = objects
            .get(name)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no object {name}")))?;
        let bytes = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        match bytes.filter(|(_, end)| *end <= object.len()) {
            Some((start, end)) => Ok(object.slice(start..end)),
            None => {
                let what = format!("object {name} has {} bytes, and {range:?} are wanted", object.len());
                Err(Error::new(ErrorKind::OutOfRange, what))
            }
        }
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        check_name(name)?;
        Ok(self.objects().get(name).map(|object| object.len() as u64))
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        check_prefix(prefix)?;
        let objects = self.objects();
        let found = objects.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(found.map(|(name, object)| ObjectInfo::new(name, object.len() as u64)).collect())
    }

    fn delete(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.objects().remove(name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_vault_conforms() {
        super::super::check_conformance(&MemoryVault::default());
    }
}
