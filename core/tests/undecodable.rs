//! Batches that are in the log as they were appended and do not unpack: readers get an error that names the records
//! and can skip them; they do not count as damage.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::cluster::{Bootstrap, ClusterOptions};
use chiplog::disk::sim::SimDisk;
use chiplog::fuzzing::{fix_batch, stored_batch};
use chiplog::inspect::{Event, Inspector, Severity};
use chiplog::transport::MemoryNetwork;
use chiplog::{Batch, ErrorKind, Index, Log, NodeId, Options, Start};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A batch that a log of an earlier version accepted: garbage with a correct checksum.
fn garbage(codec: u8, count: u32, body_length: u32) -> Batch {
    let packed = b"no compressor has ever made this, of that one may be quite sure";
    let mut bytes = vec![0; 40];
    bytes[4..8].copy_from_slice(&(40 + packed.len() as u32).to_le_bytes());
    bytes[8..12].copy_from_slice(&count.to_le_bytes());
    bytes[12..16].copy_from_slice(&body_length.to_le_bytes());
    bytes[34] = codec;
    bytes.extend_from_slice(packed);
    assert!(fix_batch(&mut bytes));
    assert_eq!(Batch::decode(bytes.clone().into()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    stored_batch(&bytes).unwrap()
}

#[test]
fn undecodable_batches_are_named_and_skipped() {
    let disk = SimDisk::default();
    let options = || {
        let network = MemoryNetwork::new();
        let mut cluster = ClusterOptions::new(NodeId(1), Bootstrap::Init, network.transport());
        cluster.scrub_bytes_per_second = 64 << 20;
        Options::with_segment_bytes(64 << 10).cluster(cluster)
    };
    let log = Log::open_on(Arc::new(disk.clone()), options()).unwrap();
    log.append(b"before").unwrap();
    let placed = log.append(&garbage(1, 3, 20)).unwrap();
    assert_eq!((placed.first, placed.count), (Index(2), 3));
    log.append(&garbage(2, 1, 20)).unwrap();
    log.append(b"behind").unwrap();
    let mut reader = log.reader(Start::First).unwrap();
    assert_eq!(reader.skip_batch().unwrap(), Index(1), "a batch that unpacks is not skipped");
    assert_eq!(reader.next_record().unwrap().unwrap().data, b"before");
    assert_eq!(reader.skip_batch().unwrap(), Index(2), "nor one that was not read");
    for (at, records, next) in [(2, "records 2 to 4", 5), (5, "record 5", 6)] {
        for _ in 0..2 {
            let error = reader.next_record().unwrap_err();
            assert_eq!((error.kind(), reader.position()), (ErrorKind::Undecodable, Index(at)));
            assert!(error.to_string().contains(records), "{error}");
            assert!(error.to_string().contains(&format!("continue at record {next}")), "{error}");
        }
        assert_eq!(log.read(Index(at)).unwrap_err().kind(), ErrorKind::Undecodable);
        assert_eq!(reader.skip_batch().unwrap(), Index(next));
    }
    assert_eq!(reader.next_record().unwrap().unwrap().data, b"behind");
    assert_eq!(reader.skip_batch().unwrap(), Index(7), "at the tail nothing changes");
    reader.seek(Index(3)).unwrap();
    assert_eq!(reader.next_record().unwrap_err().kind(), ErrorKind::Undecodable);
    assert_eq!(reader.next_stored().unwrap().unwrap().first(), Index(2), "a stored batch can be passed on");

    // Neither the scrub nor those readers counted it as damage.
    (0..30).for_each(|_| _ = log.append(&[1; 4000]).unwrap());
    assert_eq!((log.metrics().damaged, log.metrics().repaired), (0, 0));
    log.close().unwrap();
    let log = Log::open_on(Arc::new(disk.clone()), options()).unwrap();
    assert_eq!(log.read(Index(2)).unwrap_err().kind(), ErrorKind::Undecodable);
    let end = Instant::now() + Duration::from_secs(20);
    while log.metrics().scrubbed_bytes < 60_000 {
        assert!(Instant::now() < end, "{:?}", log.metrics());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((log.metrics().damaged, log.metrics().repaired), (0, 0));
    log.close().unwrap();

    // `verify` agrees, for the tail too.
    let mut found = Vec::new();
    let inspector = Inspector::open_on(Arc::new(SimDisk::new(disk.visible())));
    let report = inspector.walk(&mut |event| {
        if let Event::Fault(fault) = event {
            found.push((fault.severity, fault.records));
        }
        ControlFlow::Continue(())
    });
    let report = report.unwrap();
    assert_eq!((report.corrupt, report.harmless, report.undecodable), (0, 0, 2), "{found:?}");
    assert_eq!((report.records, report.tail), (36, None));
    let expected = [(Index(2), Index(4)), (Index(5), Index(5))];
    assert_eq!(found, expected.map(|records| (Severity::Undecodable, Some(records))));
}
