//! The vault: chiplog's interface to an object store, over a store of the crate `object_store`.
//!
//! Invariant: a `create` believes no refusal. It compares what is there with what it wrote.
//!
//! Must not know: raft, segments.

use crate::call::Call;
use crate::http::{PART_BYTES, limit};
use crate::location::Location;
use crate::options::VaultOptions;
use crate::pieces::together;
use crate::runtime::Runtime;
use crate::store::{self, Store};
use crate::upload::{part_bytes, upload_in_parts};
use bytes::Bytes;
use chiplog::vault::{ObjectInfo, Vault, check_name, check_prefix, check_range};
use chiplog::{Error, ErrorKind, Result, Timestamp};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore, ObjectStoreExt,
    PutMode, PutOptions, PutPayload,
};
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// A [`Vault`] in a bucket of S3, Google Cloud Storage or Azure, or in a directory.
///
/// `Send + Sync`: several threads can make calls at a time. Each call blocks its thread, up to as long as
/// [`VaultOptions::timeout`] says. The work is done on a thread of the vault's own, so calls work on any thread, with or
/// without an async runtime; within a runtime they block its worker. Dropping the vault does not block.
///
/// An object up to 8 MiB goes up in one request; a larger one in parts of 8 MiB, four at a time. If an upload in parts fails, it
/// is aborted. If the process ends before that, parts can stay: a rule of the bucket should remove incomplete uploads after a day.
/// Directories are synced before `put` and `create` return.
///
/// # Errors
/// Those of [`Vault`], with the object, the location and the store's own error as source. A bucket that does not exist is
/// `InvalidArgument`, except that [`size`](Vault::size) finds no object in it. In a forked child, calls fail as `Forked`.
///
/// ```
/// use chiplog::vault::Vault;
/// use chiplog_tier::{ObjectVault, VaultOptions};
/// # let temporary = tempfile::tempdir()?;
/// # let location = temporary.path().join("vault").display().to_string();
/// let vault = ObjectVault::open(&location, VaultOptions::default())?; // or "s3://bucket/prefix"
/// vault.put("o/7", &["seven ".into(), "and more".into()])?;
/// assert_eq!(vault.get("o/7", 6..14)?, &b"and more"[..]);
/// assert!(vault.create("root", "log 1".into())?);
/// assert!(!vault.create("root", "log 2".into())?);
/// assert_eq!(vault.list("o/")?[0].name, "o/7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ObjectVault {
    location: Arc<str>,
    store: Store,
    timeout: Duration,
    runtime: Runtime,
}

/// The waits between attempts of [`Vault::create`] that were refused although nothing is there.
const CREATE_WAITS: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(800),
    Duration::from_secs(2),
];

impl ObjectVault {
    /// Opens the vault at a location:
    ///
    /// - `s3://BUCKET/PREFIX`: Amazon S3, or with [`VaultOptions::endpoint`] any other service with S3's interface;
    /// - `gs://BUCKET/PREFIX`: Google Cloud Storage;
    /// - `az://CONTAINER/PREFIX`: Azure Blob Storage;
    /// - `file:///DIRECTORY` or an absolute path: a local directory, which is made if it is missing.
    ///
    /// The prefix may be left out. This call makes no request: a bucket that does not exist and wrong keys show up in the
    /// first call. Blocks only for local files.
    ///
    /// # Errors
    /// - `InvalidArgument`: the location has another form, an option is out of its bounds, or the environment's variables do
    ///   not fit.
    /// - `PermissionDenied`, `Io`: the directory cannot be made; no thread can be started.
    pub fn open(location: &str, options: VaultOptions) -> Result<Self> {
        let location = Location::parse(location)?;
        let store = store::open(&location, &options)?;
        let runtime = Runtime::start()?;
        Ok(Self { location: location.to_string().into(), store, timeout: options.timeout, runtime })
    }

    /// Where the vault is, without secrets: the location that it was opened with, without a slash at the end.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Prepares a call about an object, or about all with a prefix, that moves this many bytes in one request.
    fn call(&self, what: &str, name: &str, bytes: u64) -> Call {
        let limit = limit(self.timeout, bytes);
        Call { what: format!("{what} {name:?} of {}", self.location).into(), limit, hint: self.store.hint }
    }

    /// Does the work on the vault's thread.
    fn wait<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        work: impl FnOnce(Arc<dyn ObjectStore>) -> F,
    ) -> Result<T> {
        self.runtime.wait(work(self.store.objects.clone()))
    }

    fn path(&self, name: &str) -> Result<Path> {
        check_name(name)?;
        let path = match self.store.prefix.as_ref() {
            "" => Path::parse(name),
            prefix => Path::parse(format!("{prefix}/{name}")),
        };
        path.map_err(|e| {
            Error::with_cause(ErrorKind::InvalidArgument, format!("{name:?} is no name of an object: {e}"), e)
        })
    }

    /// The name of what is at a path; None if that is no object of a vault.
    fn name(&self, path: &Path) -> Option<String> {
        let name = match self.store.prefix.as_ref() {
            "" => path.as_ref(),
            prefix => path.as_ref().strip_prefix(prefix)?.strip_prefix('/')?,
        };
        check_name(name).ok()?;
        Some(name.to_owned())
    }
}

impl Vault for ObjectVault {
    fn put(&self, name: &str, pieces: &[Bytes]) -> Result<()> {
        let path = self.path(name)?;
        let total = pieces.iter().map(|piece| piece.len() as u64).sum();
        let in_parts = self.store.has_parts && total > PART_BYTES;
        let call = self.call("put object", name, if in_parts { part_bytes(total) } else { total });
        let pieces = pieces.to_vec(); // shares the bytes
        let done = self.wait(|store| async move {
            if in_parts {
                return upload_in_parts(&store, &path, &pieces, &call).await;
            }
            let payload: PutPayload = pieces.into_iter().collect();
            call.run(store.put(&path, payload)).await.map(|_| ())
        });
        done.map_err(|error| match error.kind() {
            // Nothing is in the way of a put: the store had another request for this object at the same time.
            ErrorKind::AlreadyExists => {
                Error::with_source(ErrorKind::Unavailable, format!("{error}; try again"), &error)
            }
            _ => no_object_meant(error),
        })
    }

    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.create_of(name, &[bytes])
    }

    fn create_of(&self, name: &str, pieces: &[Bytes]) -> Result<bool> {
        let path = self.path(name)?;
        let call = self.call("create object", name, pieces.iter().map(|piece| piece.len() as u64).sum());
        let pieces = pieces.to_vec(); // shares the bytes
        let made =
            self.wait(|store| async move { call.within_limit(create(&store, &path, &pieces, &call)).await });
        made.map_err(no_object_meant)
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        together(self, name, range)
    }

    fn get_pieces(
        &self,
        name: &str,
        range: Range<u64>,
        take: &mut dyn FnMut(Bytes) -> Result<()>,
    ) -> Result<()> {
        let path = self.path(name)?;
        check_range(name, &range)?;
        let call = self.call("get object", name, range.end - range.start);
        let store = self.store.objects.clone();
        self.runtime
            .wait_taking(|pieces| async move { get(&store, &path, range, &call, &pieces).await }, take)
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        let path = self.path(name)?;
        let call = self.call("look for object", name, 0);
        self.wait(|store| async move { size(&store, &path, &call).await })
    }

    fn modified(&self, name: &str) -> Result<Option<Timestamp>> {
        let path = self.path(name)?;
        let call = self.call("look for object", name, 0);
        self.wait(|store| async move { modified(&store, &path, &call).await })
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        check_prefix(prefix)?;
        let path = match prefix.strip_suffix('/') {
            Some(folder) => self.path(folder)?,
            None => self.store.prefix.clone(),
        };
        let call = self.call("list objects", prefix, 0);
        let found = self.wait(|store| async move {
            let mut pages = store.list(Some(&path));
            let mut found = Vec::new();
            while let Some(object) = call.run(pages.try_next()).await? {
                found.push(object);
            }
            Ok(found)
        });
        let found = found.map_err(no_object_meant)?.into_iter();
        let mut infos: Vec<_> = found
            .filter_map(|object| Some(ObjectInfo::new(self.name(&object.location)?, object.size)))
            .collect();
        infos.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(infos)
    }

    fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        let call = self.call("delete object", name, 0);
        let done = self.wait(|store| async move { call.run(store.delete(&path)).await });
        match done {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

impl fmt::Debug for ObjectVault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectVault")
            .field("location", &self.location)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Where no object can be missing, `NotFound` means that the bucket is.
fn no_object_meant(error: Error) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    let what = format!("{error}; make the bucket, or correct the location");
    Error::with_source(ErrorKind::InvalidArgument, what, &error)
}

async fn size(store: &Arc<dyn ObjectStore>, path: &Path, call: &Call) -> Result<Option<u64>> {
    match call.run(store.head(path)).await {
        Ok(object) => Ok(Some(object.size)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

async fn modified(store: &Arc<dyn ObjectStore>, path: &Path, call: &Call) -> Result<Option<Timestamp>> {
    match call.run(store.head(path)).await {
        Ok(object) => Ok(u64::try_from(object.last_modified.timestamp_millis()).ok().map(Timestamp)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Passes bytes of an object on as they arrive.
async fn get(
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    range: Range<u64>,
    call: &Call,
    pieces: &Sender<Bytes>,
) -> Result<()> {
    let wanted = range.end - range.start;
    let too_short = |size: u64| {
        let what = format!("cannot {}: it has {size} bytes, and {range:?} are wanted", call.what);
        Error::new(ErrorKind::OutOfRange, what)
    };
    let missing =
        || Error::new(ErrorKind::NotFound, format!("cannot {}: there is no object of that name", call.what));
    if wanted == 0 {
        // HTTP has no empty ranges.
        let size = size(store, path, call).await?.ok_or_else(missing)?;
        return if size < range.end { Err(too_short(size)) } else { Ok(()) };
    }
    let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
    let read = async {
        let object = store.get_opts(path, options).await?;
        // An object that ends before the range does is not even read.
        let size = object.meta.size;
        Ok((size, if size < range.end { 0 } else { pass_on(object, pieces).await? }))
    };
    match call.run(read).await {
        Ok((size, _)) if size < range.end => Err(too_short(size)),
        Ok((_, passed)) if passed == wanted => Ok(()),
        Ok((_, passed)) => {
            let what =
                format!("cannot {}: the store answered {passed} bytes of {range:?}; try again", call.what);
            Err(Error::new(ErrorKind::Unavailable, what))
        }
        // Stores refuse a range behind the end each in its own way.
        Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::OutOfRange) => {
            match size(store, path, call).await? {
                None => Err(missing()),
                Some(size) if size < range.end => Err(too_short(size)),
                Some(_) => Err(Error::with_source(ErrorKind::Io, error.to_string(), &error)),
            }
        }
        Err(error) => Err(error),
    }
}

/// Passes the bytes of an answer on, and counts them. Ends early when nobody takes them any more.
async fn pass_on(object: GetResult, pieces: &Sender<Bytes>) -> object_store::Result<u64> {
    let mut passed = 0;
    let mut pass = |piece: Bytes| {
        passed += piece.len() as u64;
        pieces.send(piece).is_ok()
    };
    match object.payload {
        GetResultPayload::File(file, path) => {
            let read = spawn_blocking(move || read_file(file, object.range));
            let read = read.await.unwrap_or_else(|e| Err(io::Error::other(e)));
            let failed = |e: io::Error| StoreError::Generic {
                store: "LocalFileSystem",
                source: format!("cannot read {}: {e}", path.display()).into(),
            };
            pass(read.map_err(failed)?);
        }
        GetResultPayload::Stream(mut stream) => {
            while let Some(piece) = stream.try_next().await? {
                if !pass(piece) {
                    break;
                }
            }
        }
    }
    Ok(passed)
}

/// The bytes of a range of a file. Unlike `object_store`, writes no zeros before it reads.
fn read_file(mut file: File, range: Range<u64>) -> io::Result<Bytes> {
    let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
    file.seek(SeekFrom::Start(range.start))?;
    file.take(range.end - range.start).read_to_end(&mut bytes)?;
    Ok(bytes.into())
}

/// Creates an object. A refusal can mean that an earlier attempt of this call has made it, or nothing at all: some stores
/// refuse one of two requests at the same time although neither is done (`object_store` calls that `AlreadyExists`, too).
async fn create(store: &Arc<dyn ObjectStore>, path: &Path, pieces: &[Bytes], call: &Call) -> Result<bool> {
    let mut waits = CREATE_WAITS.iter();
    loop {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let payload: PutPayload = pieces.iter().cloned().collect();
        let refused = match call.run(store.put_opts(path, payload, options)).await {
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => error,
            // The answer was lost; or the store refuses before it has read all, and closes the connection.
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                return holds(store, path, pieces, call).await.ok().flatten().ok_or(error);
            }
            Err(error) => return Err(error),
        };
        if let Some(is_same) = holds(store, path, pieces, call).await? {
            return Ok(is_same);
        }
        // Nothing is there.
        let Some(wait) = waits.next() else {
            let what = format!("{refused}; but there is no object of that name; try again");
            return Err(Error::with_source(ErrorKind::Unavailable, what, &refused));
        };
        sleep(*wait).await;
    }
}

/// Whether an object has exactly these bytes; None if there is none. Reads it a part at a time: it need not be in memory twice.
async fn holds(
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    pieces: &[Bytes],
    call: &Call,
) -> Result<Option<bool>> {
    let length = pieces.iter().map(|piece| piece.len() as u64).sum();
    match size(store, path, call).await? {
        None => return Ok(None),
        Some(size) if size != length => return Ok(Some(false)),
        Some(_) => {}
    }
    let (mut left, mut at) = (pieces.iter().cloned(), 0);
    let mut piece = Bytes::new();
    while at < length {
        let end = (at + PART_BYTES).min(length);
        let (taken, there) = mpsc::channel();
        match get(store, path, at..end, call, &taken).await {
            Ok(()) => drop(taken),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::OutOfRange => return Ok(Some(false)), // replaced meanwhile
            Err(error) => return Err(error),
        }
        for mut got in there {
            while !got.is_empty() {
                while piece.is_empty() {
                    let Some(next) = left.next() else { return Ok(Some(false)) };
                    piece = next;
                }
                let same = piece.len().min(got.len());
                if piece.split_to(same) != got.split_to(same) {
                    return Ok(Some(false));
                }
            }
        }
        at = end;
    }
    Ok(Some(true))
}
