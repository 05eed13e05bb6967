//! Two servers that say that they lead, or of which one is silent.

use crate::served::PATIENCE;
use crate::served::client::{producing, quick};
use crate::server::{Rogue, about, appended, of_two, refused};
use chiplog::{ErrorKind, Index};
use chiplog_net::client::{Client, ClientOptions, Producer, ProducerOptions};
use chiplog_net::wire::proto::v1::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

/// Two servers both answer that they lead. The one of the earlier term, which was cut off from the others, was used as
/// soon as the other one did not answer for a moment.
#[tokio::test]
async fn leader_of_an_earlier_term_is_not_trusted_at_once() {
    let listeners =
        [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
    let addresses: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    let named = |leader: u64| -> Vec<Server> {
        let server = |(n, address): (usize, &String)| Server {
            node: n as u64 + 1,
            address: address.clone(),
            leader: n as u64 + 1 == leader,
            ..Default::default()
        };
        addresses.iter().enumerate().map(server).collect()
    };
    let (mut old, mut new) = (Rogue::new(), Rogue::new());
    let (of_old, of_new, of_nobody) = (named(1), named(2), named(0));
    old.on_server_info =
        Box::new(move |_| ServerInfoResponse { term: 5, servers: of_old.clone(), ..about(1) });
    // At first it leads; then there is no leader for a while.
    new.on_server_info = Box::new(move |n| {
        let servers = if (1..6).contains(&n) { of_nobody.clone() } else { of_new.clone() };
        ServerInfoResponse { node: 2, term: 6, servers, ..about(1) }
    });
    new.on_append = Box::new(|stream, _, batch| match stream {
        0 => refused(ErrorKind::NotLeader),
        _ => appended(batch, 3),
    });
    let streams = old.calls.clone();
    let [first, second] = listeners;
    let mut all = old.serve_at(first);
    all.extend(new.serve_at(second));
    let client = Client::connect(all, quick()).await.unwrap();
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    assert_eq!(producer.append(b"x").await.unwrap().await.unwrap(), Index(3));
    let at_old: Vec<_> =
        streams.lock().unwrap().iter().filter(|c| c.starts_with("append")).cloned().collect();
    assert!(at_old.is_empty(), "{at_old:?}");
}

async fn two_places() -> ([TcpListener; 2], [String; 2]) {
    let listeners =
        [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
    let addresses = listeners.each_ref().map(|l| l.local_addr().unwrap().to_string());
    (listeners, addresses)
}

/// Producers that soon check for a deposed leader, and otherwise wait for its answer longer than the test takes.
async fn of_patience(client: &Client) -> Producer {
    let options = producing(|o| {
        (o.request_timeout, o.delivery_timeout) = (10 * PATIENCE, 20 * PATIENCE);
    });
    client.producer(options).await.unwrap()
}

fn asking_soon() -> ClientOptions {
    let mut options = quick();
    options.probe_timeout = Duration::from_millis(100);
    options
}

async fn acknowledged(producer: &Producer, record: &[u8]) {
    let delivery = producer.append(record).await.unwrap();
    tokio::time::timeout(PATIENCE, delivery).await.unwrap().unwrap();
}

/// The first producer of a client missed an answer and learned that another server leads, and so did the client. For
/// the second producer no server then named a later term than the known one, and it waited for the old leader for the
/// full time.
#[tokio::test]
async fn second_producer_leaves_a_silent_leader_too() {
    let ([at_first, at_second], addresses) = two_places().await;
    let elected = Arc::<AtomicUsize>::default();
    let (mut first, mut second) = (Rogue::new(), Rogue::new());
    first.on_append = Box::new(|_, n, batch| if n == 0 { appended(batch, 1) } else { None });
    let all = addresses.clone();
    first.on_server_info = Box::new(move |_| of_two(1, &all, 1, 1)); // it was cut off, and considers itself the leader
    let by_now = elected.clone();
    second.on_server_info = Box::new(move |_| match by_now.load(Ordering::Relaxed) {
        0 => of_two(2, &addresses, 1, 1),
        _ => of_two(2, &addresses, 2, 2),
    });
    second.serve_at(at_second);
    let client = Client::connect(first.serve_at(at_first), asking_soon()).await.unwrap();
    let producers = [of_patience(&client).await, of_patience(&client).await];
    for producer in &producers {
        acknowledged(producer, b"by the first").await;
    }
    elected.store(1, Ordering::Relaxed);
    for producer in &producers {
        acknowledged(producer, b"by the second").await;
    }
}

/// A leader that was elected again is the same one, whatever address was used: its slow answer is awaited.
#[tokio::test]
async fn leader_with_another_address_is_the_same_leader() {
    let ([at_first, at_second], addresses) = two_places().await;
    let (mut first, mut second) = (Rogue::silent(), Rogue::new());
    let calls = first.calls.clone();
    let seed = format!("localhost:{}", at_first.local_addr().unwrap().port());
    let (of_first, of_second) = (calls.clone(), addresses.clone());
    first.on_server_info = Box::new(move |_| of_two(1, &addresses, 1, 1));
    let at_election = Arc::<Mutex<Vec<String>>>::default();
    let then = at_election.clone();
    second.on_server_info = Box::new(move |n| {
        let asked = of_first.lock().unwrap().clone();
        if n < 3 || !asked.contains(&"append 0".to_owned()) {
            return of_two(2, &of_second, 1, 2);
        }
        let mut then = then.lock().unwrap();
        if then.is_empty() {
            *then = asked;
        }
        of_two(2, &of_second, 2, 3)
    });
    second.serve_at(at_second);
    first.serve_at(at_first);
    let client = Client::connect([seed], asking_soon()).await.unwrap();
    acknowledged(&of_patience(&client).await, b"x").await;
    // Until another one led, it had been called once.
    assert_eq!(*at_election.lock().unwrap(), ["open 7", "append 0"]);
}
