//! Uploads of large objects in parts.
//!
//! Invariant: an upload that fails is aborted, unless the store does not know it any more, and the failure that caused it is the one that
//! is returned.

use crate::call::Call;
use crate::http::PART_BYTES;
use bytes::Bytes;
use chiplog::{Error, ErrorKind, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};
use std::sync::Arc;

/// Parts of one object that go up at a time.
const PARTS_AT_ONCE: usize = 4;

/// The most parts that stores accept. S3's limit.
const PARTS_MAX: u64 = 10_000;

/// Uploads an object in parts. If that fails, takes back what is there of it: readers see the object before, or none.
///
/// # Errors
/// Those of [`Call::run`]. After a lost answer the object may be there.
pub(crate) async fn upload_in_parts(
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    pieces: &[Bytes],
    call: &Call,
) -> Result<()> {
    let upload = call.run(store.put_multipart(path)).await?;
    send(upload, pieces, call).await
}

/// Sends all parts, a few at a time, and completes the upload or aborts it.
async fn send(mut upload: Box<dyn MultipartUpload>, pieces: &[Bytes], call: &Call) -> Result<()> {
    let parts: Vec<_> = parts(pieces).into_iter().map(|part| call.run(upload.put_part(part))).collect();
    let sent = stream::iter(parts).buffer_unordered(PARTS_AT_ONCE);
    let done = match sent.try_collect::<()>().await {
        Ok(()) => call.run(upload.complete()).await.map(|_| ()),
        Err(error) => Err(error),
    };
    match done {
        Ok(()) => Ok(()),
        // The upload is no more: it was completed, and the answer lost; or a rule of the bucket has removed it. There is a bucket.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Error::with_source(ErrorKind::Unavailable, format!("{error}; try again"), &error))
        }
        Err(error) => {
            // The first failure is what the caller has to know. A rule of the bucket removes what stays.
            let _ = call.run(upload.abort()).await;
            Err(error)
        }
    }
}

/// Divides pieces into parts, without a copy.
fn parts(pieces: &[Bytes]) -> Vec<PutPayload> {
    let total: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
    let part_bytes = part_bytes(total) as usize;
    let (mut parts, mut part, mut free) = (Vec::new(), Vec::new(), part_bytes);
    for piece in pieces {
        let mut rest = piece.clone();
        while !rest.is_empty() {
            let taken = rest.split_to(rest.len().min(free));
            free -= taken.len();
            part.push(taken);
            if free == 0 {
                parts.push(std::mem::take(&mut part).into_iter().collect());
                free = part_bytes;
            }
        }
    }
    if !part.is_empty() {
        parts.push(part.into_iter().collect());
    }
    parts
}

/// The size of the parts of an object of this size. All parts but the last have one size: some stores insist on it.
pub(crate) fn part_bytes(total: u64) -> u64 {
    let least = total.div_ceil(PARTS_MAX).next_multiple_of(1 << 20);
    least.max(PART_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use object_store::memory::InMemory;
    use object_store::{PutResult, UploadPart};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn parts_have_one_size_and_all_bytes() {
        let bytes: Bytes = (0..20 << 20).map(|i: u32| (i >> 7) as u8).collect();
        for cut in [1, 8 << 20, (8 << 20) - 1, 9 << 20, 16 << 20] {
            let pieces = [bytes.slice(..cut), Bytes::new(), bytes.slice(cut..)];
            let parts = parts(&pieces);
            let sizes: Vec<usize> = parts.iter().map(PutPayload::content_length).collect();
            assert_eq!(sizes, [8 << 20, 8 << 20, 4 << 20]);
            let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().flatten().copied()).collect();
            assert!(all == bytes);
        }
        assert!(parts(&[bytes.slice(..8 << 20)]).len() == 1);
    }

    #[test]
    fn huge_objects_have_few_enough_parts() {
        assert_eq!(part_bytes(1), 8 << 20);
        let huge: u64 = 5 << 40;
        assert!(huge.div_ceil(part_bytes(huge)) <= PARTS_MAX);
    }

    /// Counts the parts that are under way, and fails one.
    #[derive(Debug)]
    struct Failing {
        running: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
        aborted: Arc<AtomicUsize>,
        parts: usize,
    }

    #[async_trait]
    impl MultipartUpload for Failing {
        fn put_part(&mut self, _: PutPayload) -> UploadPart {
            self.parts += 1;
            let (running, most, nth) = (self.running.clone(), self.most.clone(), self.parts);
            Box::pin(async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                match nth {
                    7 => Err(object_store::Error::Generic { store: "test", source: "part 7".into() }),
                    _ => Ok(()),
                }
            })
        }

        async fn complete(&mut self) -> object_store::Result<PutResult> {
            panic!("completed without part 7");
        }

        async fn abort(&mut self) -> object_store::Result<()> {
            self.aborted.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }

    #[tokio::test]
    async fn failed_part_aborts_the_upload() {
        let (most, aborted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let failing =
            Failing { running: Arc::default(), most: most.clone(), aborted: aborted.clone(), parts: 0 };
        let call = Call { what: "put object a".into(), limit: Duration::from_secs(5), hint: "" };
        let pieces = vec![Bytes::from(vec![0; 8 << 20]); 10];
        let error = send(Box::new(failing), &pieces, &call).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("part 7"), "{error}");
        assert_eq!(aborted.load(Ordering::SeqCst), 1);
        assert_eq!(most.load(Ordering::SeqCst), PARTS_AT_ONCE);
    }

    #[tokio::test]
    async fn upload_in_parts_is_whole() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let call = Call { what: "put object a".into(), limit: Duration::from_secs(5), hint: "" };
        let bytes: Bytes = (0..20 << 20).map(|i: u32| (i >> 7) as u8).collect();
        let path = Path::from("a");
        upload_in_parts(&store, &path, &[bytes.slice(..77), bytes.slice(77..)], &call).await.unwrap();
        assert!(store.get(&path).await.unwrap().bytes().await.unwrap() == bytes);
    }
}
