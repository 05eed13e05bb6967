//! A log inside a program: append durably, read back. The README shows exactly these lines.

use chiplog::{Log, Options, Start};

fn main() -> Result<(), chiplog::Error> {
    let log = Log::open("orders", Options::default())?; // a directory, created if it is missing
    let index = log.append(b"3 lenses to Cambridge")?; // returns once the record is on stable storage
    println!("record {index} is durable");

    let mut reader = log.reader(Start::First)?;
    while let Some(record) = reader.next_record()? {
        println!("{}: {}", record.index, String::from_utf8_lossy(record.data));
    }
    Ok(())
}
