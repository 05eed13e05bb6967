//! The segment files of a directory, as recovery finds them: their names, headers and other fixed parts.

use super::scanner::{Found, Scanner};
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::record::batch::Malformed;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::geometry::SEGMENT_BYTES_MIN;
use crate::store::format::geometry::{FOOTER_BYTES, SEGMENT_HEADER_BYTES};
use crate::store::format::identity::{Identity, newer};
use crate::store::format::segment::{Footer, HeaderFault, SegmentHeader};
use crate::store::segment::file_name;
use crate::types::EntryIndex;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A file that can be reused or removed.
#[derive(Debug)]
pub(crate) struct Leftover {
    pub(crate) name: String,
    /// Its size if it can be reused; 0 if it is only to be removed.
    pub(crate) bytes: u64,
}

/// An opened segment file with its header checked.
pub(crate) struct Opened {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) header: SegmentHeader,
    pub(crate) path: PathBuf,
    pub(crate) footer: Option<Footer>,
}

/// The files of a directory.
pub(crate) struct Files<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) identity: Identity,
    /// Segment files not examined yet, by number.
    pub(crate) names: BTreeMap<u64, String>,
}

impl Files<'_> {
    /// Opens segment `number` and checks its header. `None`: an exact copy of another segment, which is ignored.
    pub(crate) fn open(&self, number: u64, write: bool) -> Result<Option<Opened>> {
        let name = file_name(number);
        let path = self.disk.path().join(&name);
        let io = |doing: &'static str| {
            let path = path.clone();
            move |e: io::Error| Error::io(doing, &path, e)
        };
        let file = self.disk.open(&name, write).map_err(io("open"))?;
        let length = file.len().map_err(io("measure"))?;
        if length < u64::from(SEGMENT_BYTES_MIN) {
            return Err(Error::corrupt(&path, length, "the file is shorter than the smallest segment"));
        }
        let mut head = vec![0; SEGMENT_HEADER_BYTES];
        file.read_at(0, &mut head).map_err(io("read"))?;
        let header = SegmentHeader::parse(&head).map_err(|fault| match fault {
            HeaderFault::Malformed(why) => Error::corrupt(&path, 0, why),
            HeaderFault::Newer(reader_min) => newer(&path, reader_min),
        })?;
        if u64::from(header.bytes) != length {
            let what = format!("the file has {length} bytes, but its header says {}", header.bytes);
            return Err(Error::corrupt(&path, length.min(header.bytes.into()), what));
        }
        if header.log != self.identity.log {
            return Err(Error::corrupt(&path, 24, "the segment belongs to another log"));
        }
        if header.number != number {
            if self.is_copy(&*file, header.number, length)? {
                tracing::warn!(file = %path.display(), original = header.number, "ignored a file that is a copy of another segment");
                return Ok(None);
            }
            return Err(Error::corrupt(
                &path,
                40,
                format!("the file's header says that it is segment {}", header.number),
            ));
        }
        let mut tail = [0; FOOTER_BYTES];
        file.read_at(length - FOOTER_BYTES as u64, &mut tail).map_err(io("read"))?;
        let footer = Footer::parse(&tail, number, header.id).ok().filter(|f| f.fits(header.bytes as usize));
        Ok(Some(Opened { file, header, path, footer }))
    }

    /// Whether `file` has the same bytes as segment `number`.
    pub(crate) fn is_copy(&self, file: &dyn DiskFile, number: u64, length: u64) -> Result<bool> {
        let name = file_name(number);
        let path = self.disk.path().join(&name);
        let Ok(original) = self.disk.open(&name, false) else { return Ok(false) };
        if original.len().ok() != Some(length) {
            return Ok(false);
        }
        let (mut a, mut b) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut at = 0;
        while at < length {
            let n = a.len().min((length - at) as usize);
            file.read_at(at, &mut a[..n]).map_err(|e| Error::io("read", &path, e))?;
            original.read_at(at, &mut b[..n]).map_err(|e| Error::io("read", &path, e))?;
            if a[..n] != b[..n] {
                return Ok(false);
            }
            at += n as u64;
        }
        Ok(true)
    }

    /// Removes a segment that contains nothing of the log from the names, and returns it as a leftover.
    pub(crate) fn leave(&mut self, number: u64) -> Result<Leftover> {
        let name = self.names.remove(&number).unwrap_or_else(|| file_name(number));
        let path = self.disk.path().join(&name);
        let length = self.disk.open(&name, false).and_then(|f| f.len());
        Ok(Leftover { bytes: length.map_err(|e| Error::io("measure", &path, e))?, name })
    }
}

impl Opened {
    pub(crate) fn scanner(&self) -> Scanner {
        Scanner::new(self.file.clone(), self.path.clone(), self.header.id, self.header.bytes as usize)
    }

    /// Whether its first block's header is sound. Costs one small read. If not, the segment has not begun, or is
    /// damaged.
    pub(crate) fn may_have_begun(&self) -> bool {
        let mut head = [0; BLOCK_HEADER_BYTES];
        let read = self.file.read_at(SEGMENT_HEADER_BYTES as u64, &mut head);
        read.is_ok() && BlockHeader::parse(&head, self.header.id).is_ok()
    }

    /// The last entry before it, or the reason why its opening block is not sound.
    pub(crate) fn begins(&self) -> Result<Result<EntryIndex, Malformed>> {
        Ok(match self.scanner().block(SEGMENT_HEADER_BYTES)? {
            Found::Block(header, _) if header.kind == Kind::Opening => Ok(header.raft_index),
            Found::Block(..) => Err("the first block is not an opening block"),
            Found::Nothing(why) => Err(why),
            Found::Limit => Err("segment has no room for blocks"),
        })
    }

    /// Whether its opening block exists. If not: whether a later block proves that it did.
    pub(crate) fn has_begun(&self) -> Result<Begun> {
        let mut scanner = self.scanner();
        let opening = match scanner.block(SEGMENT_HEADER_BYTES)? {
            Found::Block(header, _) => Ok(header),
            Found::Nothing(why) => Err(why),
            Found::Limit => Err("segment has no room for blocks"),
        };
        match opening {
            Ok(header) if header.kind == Kind::Opening => Ok(Begun::Yes),
            Ok(_) => Ok(Begun::Damaged("the first block is not an opening block")),
            Err(why) => Ok(Begun::No(why)),
        }
    }
}

pub(crate) enum Begun {
    Yes,
    No(Malformed),
    Damaged(Malformed),
}
