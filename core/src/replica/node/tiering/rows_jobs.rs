//! The jobs about older rows: they look for rows in the object store, and read them.
//!
//! Must not know: who leads.

use crate::error::Result;
use crate::record::crc::crc32c;
use crate::replica::queue::proposals::ObjectCommand;
use crate::store::format::objects::StoredAt;
use crate::store::format::older_rows::RowsRun;
use crate::store::objects::names::Lineage;
use crate::store::objects::older_rows::{fetch, rows_in};
use crate::vault::Vault;
use std::ops::Range;
use std::sync::Arc;

/// A look for rows in the opening of an object.
pub(super) struct RowsLook {
    pub(super) vault: Arc<dyn Vault>,
    pub(super) lineage: Lineage,
    /// The objects whose rows they are.
    pub(super) of: Range<u64>,
    pub(super) rows: Vec<u8>,
    /// The object that is to hold them.
    pub(super) holder: u64,
}

impl RowsLook {
    /// The command that moves the rows. None: the opening does not have all of them.
    pub(super) fn find(&self) -> Result<Option<ObjectCommand>> {
        let Self { vault, lineage, of, rows, holder } = self;
        let (below, crc) = (of.end, crc32c(rows));
        let command = |offset| ObjectCommand::MoveRows { below, holder: *holder, offset, crc };
        if planted!(162) {
            return Ok(Some(command(1 << 13)));
        }
        let found = rows_in(&**vault, lineage.owner(*holder), *holder, of.clone())?;
        Ok(found.filter(|(_, found)| **found == **rows).map(|(offset, _)| command(offset)))
    }
}

/// A run whose rows are to be read.
pub(super) struct RunLook {
    pub(super) vault: Arc<dyn Vault>,
    pub(super) lineage: Lineage,
    pub(super) run: RowsRun,
}

impl RunLook {
    /// The run's objects, and whether the holder has their rows.
    pub(super) fn read(&self) -> Result<(Vec<StoredAt>, bool)> {
        fetch(&*self.vault, &self.lineage, &self.run)
    }
}
