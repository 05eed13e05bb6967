//! A hundred tenants in one directory, each with a log and a view of its own. docs/embedding.md shows exactly these lines.

use chiplog::{ErrorKind, Log, Logs, LogsOptions, Options, Reader, Result, Start};
use std::collections::BTreeMap;

/// A tenant: its log, and a view of that log in memory.
struct Tenant {
    log: Log,
    reader: Reader,
    stock: BTreeMap<String, i64>,
}

impl Tenant {
    /// Opens the tenant's log, or creates it, and reads it to its end.
    fn open(logs: &Logs, name: &str) -> Result<Self> {
        let log = match logs.create(name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => logs.get(name)?,
            created => created?,
        };
        let reader = log.reader(Start::First)?;
        let mut tenant = Self { log, reader, stock: BTreeMap::new() };
        tenant.catch_up()?;
        Ok(tenant)
    }

    /// Applies the records that the view does not have yet: each one a number, and the name of a thing.
    fn catch_up(&mut self) -> Result<()> {
        while let Some(record) = self.reader.next_record()? {
            let text = String::from_utf8_lossy(record.data);
            if let Some((number, thing)) = text.split_once(' ') {
                *self.stock.entry(thing.to_owned()).or_default() += number.parse::<i64>().unwrap_or_default();
            }
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let count: i64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(100);
    let open = || -> Result<(Logs, Vec<Tenant>)> {
        let group = Options::with_segment_bytes(4 << 20).sessions_max(64); // small files, few sessions
        let logs = Logs::open("tenants", LogsOptions::default().options(group))?;
        let tenants = (1..=count).map(|n| Tenant::open(&logs, &format!("tenant-{n}")));
        let tenants = tenants.collect::<Result<_>>()?;
        Ok((logs, tenants))
    };

    let (logs, mut tenants) = open()?;
    for thing in ["lenses", "prisms", "mirrors"] {
        // Appends that are in flight together share a few writes and syncs, whichever logs they go to.
        let submit = |(tenant, n): (&Tenant, i64)| tenant.log.submit(format!("{n} {thing}").as_bytes());
        let tickets: Vec<_> = tenants.iter().zip(1..).map(submit).collect::<Result<_>>()?;
        for ticket in tickets {
            ticket.wait()?;
        }
    }
    for tenant in &mut tenants {
        tenant.catch_up()?;
    }
    let before: Vec<_> = tenants.into_iter().map(|tenant| tenant.stock).collect();
    logs.close()?;

    let (logs, tenants) = open()?; // the views are made again, each of its own log
    let records: u64 = logs.list()?.iter().map(|log| log.last_index.get()).sum();
    assert!(tenants.iter().map(|tenant| &tenant.stock).eq(&before), "a view differs after the restart");
    println!("{} logs in {} groups, {records} records", tenants.len(), logs.groups().len());
    if let Some(last) = tenants.last() {
        println!("the last tenant has {:?}", last.stock);
    }
    logs.close()
}
