//! The first read of a view that has nothing yet: all records of a server's log, over the network, to compare with other systems' consumers.
//!
//! `remote_read DIR SERVER`: makes a copy in the new directory DIR, which reads the objects of SERVER (`HOST:PORT`) over HTTP, and reads
//! every record up to the last one, all bytes checked. Prints a line of JSON: records, their bytes, seconds, MiB/s.

use chiplog::vault::Vault;
use chiplog::{Options, Start};
use chiplog_net::follower::{Follower, FollowerOptions};
use chiplog_tier::{ServerVault, ServerVaultOptions};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(dir), Some(server), None) = (args.next(), args.next(), args.next()) else {
        return Err("remote_read DIR SERVER".into());
    };
    let vault = ServerVault::open(&format!("http://{server}"), ServerVaultOptions::default())?;
    let mut options = FollowerOptions::default();
    options.files = Options::default().vault(Arc::new(vault) as Arc<dyn Vault>).local_bytes(256 << 20);
    let begun = Instant::now();
    let follower = Follower::open(dir, [server], Start::First, options)?;
    let mut reader = follower.reader(Start::First)?;
    let (mut records, mut bytes) = (0, 0);
    while records == 0 || reader.position() <= follower.status().source_last {
        if !reader.wait(Some(Duration::from_secs(30)))? {
            return Err(format!("no record at {} for 30 s", reader.position()).into());
        }
        while let Some(batch) = reader.next_batch()? {
            records += u64::from(batch.count());
            bytes += batch.payload().len();
        }
    }
    let secs = begun.elapsed().as_secs_f64();
    let mib_s = bytes as f64 / secs / f64::from(1 << 20);
    println!("{{\"records\": {records}, \"bytes\": {bytes}, \"secs\": {secs:.3}, \"mib_s\": {mib_s:.1}}}");
    follower.close()?;
    Ok(())
}
