//! Appends and reads over loopback, and prints how fast: `cargo run --release -p chiplog-net --example throughput`.
//!
//! Arguments, both optional: the directory of the log (default: one under `target`), seconds a measurement (default 3).

use chiplog::{Log, Options, Start};
use chiplog_net::client::{Client, ClientOptions, ProducerOptions, ReadFrom, ReaderOptions};
use chiplog_net::host::Host;
use chiplog_net::native::Native;
use std::error::Error;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

type Result<T = (), E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> Result {
    let mut arguments = std::env::args().skip(1);
    let root = arguments.next().unwrap_or_else(|| "target/throughput".into());
    let seconds = arguments.next().map_or(Ok(3), |s| s.parse())?;
    let time = Duration::from_secs(seconds);
    for (record_bytes, connections) in [(10, 1), (100, 1), (2048, 1), (2048, 32)] {
        let _ = std::fs::remove_dir_all(&root);
        let log = Log::open(&root, Options::default())?;
        let address = serve(log)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(measure(&address, record_bytes, connections, time))?;
    }
    let _ = std::fs::remove_dir_all(&root);
    Ok(())
}

/// A server on a thread of its own.
fn serve(log: Log) -> Result<String> {
    let (sender, address) = channel();
    std::thread::spawn(move || -> Result {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            sender.send(listener.local_addr()?.to_string())?;
            let host = Host::new();
            host.open(log);
            let server = tonic::transport::Server::builder()
                .tcp_nodelay(true)
                .initial_stream_window_size(4 << 20)
                .initial_connection_window_size(8 << 20)
                .add_service(Native::new(host).into_service());
            Ok(server.serve_with_incoming(TcpListenerStream::new(listener)).await?)
        })
    });
    Ok(address.recv()?)
}

async fn measure(address: &str, record_bytes: usize, connections: usize, time: Duration) -> Result {
    let record = vec![7; record_bytes];
    let begun = Instant::now();
    let mut producers = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let client = Client::connect([address], ClientOptions::default()).await?;
        let record = record.clone();
        producers.spawn(async move {
            let producer = client.producer(ProducerOptions::default()).await?;
            let mut count = 0u64;
            while begun.elapsed() < time {
                for _ in 0..100 {
                    producer.send(&record).await?;
                }
                count += 100;
                tokio::task::yield_now().await;
            }
            producer.flush(Duration::from_secs(60)).await?;
            Ok::<_, chiplog::Error>(count)
        });
    }
    let mut count = 0;
    while let Some(done) = producers.join_next().await {
        count += done??;
    }
    let taken = begun.elapsed().as_secs_f64();
    println!(
        "append, {record_bytes} bytes, {connections} connections: {:.2} M records/s, {:.0} MiB/s",
        count as f64 / taken / 1e6,
        count as f64 * record_bytes as f64 / taken / f64::from(1 << 20)
    );
    let client = Client::connect([address], ClientOptions::default()).await?;
    let mut options = ReaderOptions::default();
    (options.follow, options.from) = (false, ReadFrom::Any);
    let mut reader = client.reader_with(Start::First, options);
    let (begun, mut read, mut bytes) = (Instant::now(), 0u64, 0u64);
    while let Some(batch) = reader.next_batch().await? {
        read += u64::from(batch.count());
        bytes += batch.iter().map(|r| r.data.len() as u64).sum::<u64>();
    }
    let taken = begun.elapsed().as_secs_f64();
    if read != count {
        return Err(format!("{read} records were read, and {count} appended").into());
    }
    println!(
        "read, {record_bytes} bytes: {:.2} M records/s, {:.0} MiB/s",
        read as f64 / taken / 1e6,
        bytes as f64 / taken / f64::from(1 << 20)
    );
    Ok(())
}
