//! The segment files of a directory, as recovery finds them: their names, headers and other fixed parts.

use super::scanner::Scanner;
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::record::batch::Malformed;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::geometry::SEGMENT_BYTES_MIN;
use crate::store::format::geometry::{FOOTER_BYTES, SEGMENT_HEADER_BYTES};
use crate::store::format::identity::{Identity, newer};
use crate::store::format::segment::{Footer, HeaderFault, SegmentHeader};
use crate::store::segment::{Base, file_name};
use crate::types::EntryIndex;
use std::collections::BTreeMap;
use std::fmt::Display;
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

/// Files that recovery could not read, or that do not follow each other, and that an object may have to be made of.
#[derive(Debug, Default)]
pub(crate) struct PutAside {
    pub(crate) names: Vec<String>,
    /// The last entry before all of them; 0 if it is not known.
    pub(crate) from: EntryIndex,
    /// Whether an object that is not stored yet needs them. They stay until a later start then.
    pub(crate) are_unstored: bool,
}

/// An opened segment file with its header checked.
pub(crate) struct SegmentFile {
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

impl SegmentFile {
    /// Opens segment `number` for reading, and checks its length and header.
    ///
    /// # Errors
    /// `Corrupt`: length or header are wrong; `Unsupported`: a newer version wrote the file; `Io`.
    pub(crate) fn open(disk: &dyn Disk, number: u64) -> Result<Self> {
        let name = file_name(number);
        let path = disk.path().join(&name);
        let io = |doing: &'static str| {
            let path = path.clone();
            move |e: io::Error| Error::io(doing, &path, e)
        };
        let file = disk.open(&name, false).map_err(io("open"))?;
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
        let mut tail = [0; FOOTER_BYTES];
        file.read_at(length - FOOTER_BYTES as u64, &mut tail).map_err(io("read"))?;
        let footer =
            Footer::parse(&tail, header.number, header.id).ok().filter(|f| f.fits(header.bytes as usize));
        Ok(Self { file, header, path, footer })
    }

    pub(crate) fn scanner(&self) -> Scanner {
        Scanner::new(self.file.clone(), self.path.clone(), self.header.id, self.header.bytes as usize)
    }

    /// Whether its first block's header is sound. Costs one small read. If not, the segment has not begun, or is
    /// damaged.
    pub(crate) fn may_have_begun(&self) -> bool {
        self.first_header().is_some()
    }

    /// The last entry before it, if its first block's header is that of an opening. As cheap, and as little certain.
    pub(crate) fn may_begin_at(&self) -> Option<EntryIndex> {
        self.first_header().filter(|header| header.kind == Kind::Opening).map(|header| header.raft_index)
    }

    fn first_header(&self) -> Option<BlockHeader> {
        let mut head = [0; BLOCK_HEADER_BYTES];
        self.file.read_at(SEGMENT_HEADER_BYTES as u64, &mut head).ok()?;
        BlockHeader::parse(&head, self.header.id).ok()
    }

    /// Whether it has begun: whether it has an opening block.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn begins(&self) -> Result<Begun> {
        Ok(match self.scanner().block(SEGMENT_HEADER_BYTES)? {
            Ok((h, _)) if h.kind == Kind::Opening => {
                Begun::Yes(Base { raft: h.raft_index, term: h.term, next: h.first })
            }
            Ok(_) => Begun::Damaged("the first block is not an opening block"),
            Err(why) => Begun::No(why),
        })
    }

    /// The position where it begins, if its opening block is sound.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn base(&self) -> Result<Option<Base>> {
        Ok(self.begins()?.base().ok())
    }

    /// Damage at an offset of the file.
    pub(crate) fn corrupt(&self, at: usize, what: impl Display) -> Error {
        Error::corrupt(&self.path, at as u64, what)
    }
}

impl Files<'_> {
    /// Opens segment `number` and checks its header. `None`: an exact copy of another segment, which is ignored.
    pub(crate) fn open(&self, number: u64) -> Result<Option<SegmentFile>> {
        let opened = SegmentFile::open(self.disk, number)?;
        let SegmentFile { file, header, path, .. } = &opened;
        if header.log != self.identity.log {
            return Err(Error::corrupt(path, 24, "the segment belongs to another log"));
        }
        if header.number != number {
            if self.is_copy(&**file, header.number, header.bytes.into())? {
                tracing::warn!(file = %path.display(), original = header.number, "ignored a file that is a copy of another segment");
                return Ok(None);
            }
            return Err(Error::corrupt(
                path,
                40,
                format!("the file's header says that it is segment {}", header.number),
            ));
        }
        Ok(Some(opened))
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

/// Whether a segment has begun.
pub(crate) enum Begun {
    /// It begins at this position.
    Yes(Base),
    /// Its first block is not sound: it has not begun, or it is damaged.
    No(Malformed),
    /// Its first block is sound, and no opening.
    Damaged(Malformed),
}

impl Begun {
    /// The position at which it begins, or why that is not known.
    pub(crate) fn base(self) -> Result<Base, Malformed> {
        match self {
            Self::Yes(base) => Ok(base),
            Self::No(why) | Self::Damaged(why) => Err(why),
        }
    }
}
