//! A log over the network: appends three records, exactly once each, and reads them back.
//!
//! `cargo run -p chiplog-net --example client -- 127.0.0.1:7411`, with `chiplog dev` in another terminal.

use chiplog::{Result, Start};
use chiplog_net::client::blocking::Client;
use chiplog_net::client::{ClientOptions, ProducerOptions, ReadFrom};
use chiplog_net::notices::{Notices, Severity};
use std::time::Duration;

fn main() -> Result<()> {
    Notices::subscribe(Severity::Warn, |notice| eprintln!("{}", notice.text))?; // such as what a call waits for
    let server = std::env::args().nth(1).unwrap_or("127.0.0.1:7411".into());
    let client = Client::connect([server], ClientOptions::default())?; // one is enough; it names the others
    let producer = client.producer(ProducerOptions::default())?; // a session: a retry never stores a record twice
    let first = producer.append(b"3 lenses to Cambridge")?; // returns once a majority has it on stable storage
    producer.send(b"1 prism to Woolsthorpe")?; // returns once it is buffered: many are in flight at a time
    producer.send(b"2 mirrors to London")?;
    producer.flush(Duration::from_secs(10))?;

    let mut reader = client.reader(Start::Index(first), ReadFrom::Any); // continues at another server if its own fails
    for _ in 0..3 {
        if let Some(record) = reader.next_record()? {
            println!("{}: {}", record.index, String::from_utf8_lossy(&record.data));
        }
    }
    assert!(producer.close(Duration::from_secs(10)).all_acknowledged());
    Ok(())
}
