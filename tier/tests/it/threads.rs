//! Calls from many threads, and from within async runtimes.

use crate::s3_server::S3Server;
use bytes::Bytes;
use chiplog::vault::Vault;
use chiplog_tier::{ObjectVault, VaultOptions};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const THREADS: usize = 16;

fn work_together(vault: &dyn Vault) {
    let made = AtomicUsize::new(0);
    thread::scope(|scope| {
        for t in 0..THREADS {
            let made = &made;
            scope.spawn(move || {
                // The bytes differ, so only one of them made it.
                if vault.create("root", format!("thread {t:02}").into()).unwrap() {
                    made.fetch_add(1, Ordering::SeqCst);
                }
                for n in 0..12 {
                    let name = format!("o/{t}/{n}");
                    let bytes = Bytes::from(vec![(t * 16 + n) as u8; 10_000 + n]);
                    vault.put(&name, &[bytes.slice(..n), bytes.slice(n..)]).unwrap();
                    vault.put("shared", &[vec![t as u8; 5_000].into()]).unwrap();
                    let size = vault.size(&name).unwrap().unwrap();
                    assert!(vault.get(&name, 0..size).unwrap() == bytes);
                    let shared = vault.get("shared", 0..5_000).unwrap();
                    assert!(shared.iter().all(|byte| *byte == shared[0]));
                    if n % 2 == 0 {
                        vault.delete(&name).unwrap();
                    }
                }
                assert_eq!(vault.list(&format!("o/{t}/")).unwrap().len(), 6);
            });
        }
    });
    assert_eq!(made.load(Ordering::SeqCst), 1);
    assert_eq!(vault.list("").unwrap().len(), THREADS * 6 + 2);
}

#[test]
fn threads_work_together_over_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let vault = ObjectVault::open(dir.path().to_str().unwrap(), VaultOptions::default()).unwrap();
    work_together(&vault);
}

#[test]
fn threads_work_together_over_s3() {
    work_together(&S3Server::start().vault("s3://bucket/p"));
}

/// A runtime that blocks within another one panics: "Cannot start a runtime from within a runtime".
#[test]
fn vault_works_and_ends_within_other_runtimes() {
    let server = S3Server::start();
    let work = async || {
        let vault = server.vault("s3://bucket/p");
        vault.put("o/7", &["seven".into()]).unwrap();
        assert_eq!(vault.get("o/7", 0..5).unwrap(), &b"seven"[..]);
        drop(vault);
    };
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(work());
    let options = server.options.clone();
    let within_a_task = runtime.spawn(async move {
        let vault = ObjectVault::open("s3://bucket/p", options).unwrap();
        vault.size("o/7").unwrap()
    });
    assert_eq!(runtime.block_on(within_a_task).unwrap(), Some(5));
}
