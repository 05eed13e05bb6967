//! Measures appends and reads over loopback: `cargo run --release -p chiplog-net --example throughput`.
//!
//! Arguments, all optional: the directory of the log (default: one under `target`), seconds per measurement (default
//! 3), and `generated` to read through tonic's own encoding, which copies.

use chiplog::{Log, Options, Start};
use chiplog_net::client::{Client, ClientOptions, ProducerOptions, ReadFrom, ReaderOptions};
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::service::log::LogService;
use chiplog_net::wire::proto::v1::log_server::LogServer;
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
    let generated = arguments.next().is_some_and(|a| a == "generated");
    for (record_bytes, connections) in [(10, 1), (100, 1), (2048, 1), (2048, 32)] {
        let _ = std::fs::remove_dir_all(&root);
        let log = Log::open(&root, Options::default())?;
        let address = serve(log, generated)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(measure(&address, record_bytes, connections, time))?;
    }
    let _ = std::fs::remove_dir_all(&root);
    Ok(())
}

/// Starts a server on its own thread.
fn serve(log: Log, generated: bool) -> Result<String> {
    let (sender, address) = channel();
    std::thread::spawn(move || -> Result {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            sender.send(listener.local_addr()?.to_string())?;
            let host = LogSlot::new();
            host.open(log);
            let mut server = tonic::transport::Server::builder()
                .tcp_nodelay(true)
                .initial_stream_window_size(4 << 20)
                .initial_connection_window_size(8 << 20)
                .max_frame_size(256 << 10);
            let incoming = TcpListenerStream::new(listener);
            let native = LogService::new(host);
            if generated {
                let service = LogServer::new(native).max_encoding_message_size(64 << 20);
                return Ok(server.add_service(service).serve_with_incoming(incoming).await?);
            }
            Ok(server.add_service(native.into_service()).serve_with_incoming(incoming).await?)
        })
    });
    Ok(address.recv()?)
}

async fn measure(address: &str, record_bytes: usize, connections: usize, time: Duration) -> Result {
    let record = vec![7; record_bytes];
    let (begun, cpu) = (Instant::now(), cpu_seconds()?);
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
    show(&format!("append on {connections}"), record_bytes, count, begun, cpu)?;
    let client = Client::connect([address], ClientOptions::default()).await?;
    let mut options = ReaderOptions::default();
    (options.follow, options.from) = (false, ReadFrom::Any);
    let mut reader = client.reader_with(Start::First, options);
    let (begun, cpu, mut read) = (Instant::now(), cpu_seconds()?, 0u64);
    while let Some(batch) = reader.next_batch().await? {
        read += batch.iter().filter(|r| r.data.len() == record_bytes).count() as u64;
    }
    if read != count {
        return Err(format!("{read} records were read, and {count} appended").into());
    }
    show("read", record_bytes, read, begun, cpu)
}

/// Prints a result. `begun` and `cpu`: the time, and the CPU time of all threads, at the start.
fn show(what: &str, record_bytes: usize, count: u64, begun: Instant, cpu: f64) -> Result {
    let taken = begun.elapsed().as_secs_f64();
    let mib = count as f64 * record_bytes as f64 / f64::from(1 << 20);
    println!(
        "{what}, {record_bytes} bytes per record: {:.2} M/s, {:.0} MiB/s, {:.2} s of CPU per GiB",
        count as f64 / taken / 1e6,
        mib / taken,
        (cpu_seconds()? - cpu) / mib * 1024.0
    );
    Ok(())
}

/// User and system time of this process, with a resolution of 10 ms.
fn cpu_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    Ok((ticks(11) + ticks(12)) / 100.0)
}
