//! How durable a record is when it is acknowledged: the client tells what the server does, in each class.
#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use chiplog::vault::{MemoryVault, Vault};
use chiplog::{Appended, Durability, Index, LogOption, Logs, LogsOptions, Options};
use chiplog_net::client::{Client, ProducerOptions, blocking};
use chiplog_net::service::log::NativeOptions;
use served::client::quick;
use served::{One, PATIENCE};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Slices of entries every 10 ms.
fn sliced() -> Options {
    let vault = Arc::new(MemoryVault::default());
    let options = Options::with_segment_bytes(256 << 10).vault(vault as Arc<dyn Vault>);
    options.slice_interval(Some(Duration::from_millis(10)))
}

/// A record, then two in a batch, then one with a callback: each way of a producer tells the same.
async fn tells(client: &Client, durability: Durability) {
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    let mut one = producer.append(b"one").await.unwrap();
    assert_eq!(one.durability(), None, "it is not acknowledged yet");
    assert_eq!((&mut one).await.unwrap(), Index(1));
    assert_eq!((one.durability(), one.clone().durability()), (Some(durability), Some(durability)));
    let mut two = producer.append_batch(&[vec![2; 2000], vec![3; 2000]]).await.unwrap();
    (&mut two).await.unwrap();
    assert_eq!(two.durability(), Some(durability));
    let (sender, told) = mpsc::channel();
    let sent = sender.clone();
    producer.send_with(b"four", move |result| sent.send(result).unwrap()).await.unwrap();
    producer.send_batch(&["five", "six"], move |result| sender.send(result).unwrap()).await.unwrap();
    producer.flush(PATIENCE).await.unwrap();
    for (first, count) in [(4, 1), (5, 2)] {
        let wanted = Appended { durability: Some(durability), ..Appended::new(Index(first), count) };
        assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap(), wanted);
    }
}

async fn class_of(options: Options, durability: Durability) {
    let refers = options.payload_slices;
    let one = One::with(options, NativeOptions::default());
    let begun = Instant::now();
    while refers && one.log.log_options().get(LogOption::PayloadSlices) != Some(1) {
        assert!(begun.elapsed() < PATIENCE, "the class is not switched on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tells(&Client::connect([one.address()], quick()).await.unwrap(), durability).await;
}

#[tokio::test]
async fn log_without_an_object_store_is_at_a_majority() {
    class_of(Options::with_segment_bytes(1 << 20), Durability::Majority).await;
}

#[tokio::test]
async fn log_with_slices_of_entries_says_so() {
    class_of(sliced(), Durability::MajoritySlices).await;
}

#[tokio::test]
async fn log_with_its_payload_in_the_store_says_so() {
    class_of(sliced().payload_slices(true), Durability::Object).await;
}

#[tokio::test]
async fn named_log_tells_the_durability_of_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let one = One::new();
    let logs = Logs::open(dir.path(), LogsOptions::default().options(sliced().payload_slices(true))).unwrap();
    one.server.host.open_named(logs.clone());
    logs.create("orders").unwrap();
    let begun = Instant::now();
    let is_on =
        || logs.groups().values().all(|group| group.log_options().get(LogOption::PayloadSlices) == Some(1));
    while !is_on() {
        assert!(begun.elapsed() < PATIENCE, "the class is not switched on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let client = Client::connect([one.address()], quick().log("orders".to_owned())).await.unwrap();
    tells(&client, Durability::Object).await;
}

#[test]
fn blocking_client_tells_the_same() {
    let one = One::new();
    let client = blocking::Client::connect([one.address()], quick()).unwrap();
    let producer = client.producer(ProducerOptions::default()).unwrap();
    let delivery = producer.submit(b"one").unwrap();
    delivery.wait().unwrap();
    assert_eq!(delivery.durability(), Some(Durability::Majority));
}
