//! Pieces: the bytes of an object, of which a vault has read one piece after the other, as one.
//!
//! Must not know: where they come from.

use bytes::Bytes;
use chiplog::Result;
use chiplog::vault::Vault;
use std::ops::Range;

/// [`Vault::get`] of a vault that has its own [`Vault::get_pieces`]. One piece is not copied.
pub(crate) fn together(vault: &dyn Vault, name: &str, range: Range<u64>) -> Result<Bytes> {
    let mut pieces = Vec::new();
    vault.get_pieces(name, range, &mut |piece| {
        pieces.push(piece);
        Ok(())
    })?;
    Ok(match pieces.len() {
        1 => pieces.swap_remove(0),
        _ => pieces.concat().into(),
    })
}
