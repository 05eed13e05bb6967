//! Reads from servers: from any replica that has everything acknowledged before the command began (with
//! --stale: everything that any answering replica has). If a replica fails, another one continues at the next
//! record.

use super::Source;
use crate::common::failure::Result;
use crate::common::output::Ui;
use crate::connect::cluster::{Connect, REPORT_AFTER};
use crate::connect::remote::{Remote, failure};
use crate::connect::target;
use chiplog::{Record, RecordBatch, Start};
use chiplog_net::client::{ReaderOptions, RemoteReader};
use std::time::{Duration, Instant};

pub(super) struct Servers {
    remote: Remote,
    reader: RemoteReader,
    /// Received records, and how many of them were returned.
    batch: Option<(RecordBatch, u32)>,
    follow: bool,
    /// Since when no server sends, and whether that was reported.
    silent: Option<(Instant, bool)>,
    ui: Ui,
}

impl Servers {
    pub(super) fn open(
        servers: &target::Servers,
        connect: &Connect,
        start: Start,
        follow: bool,
        stale: bool,
        ui: &Ui,
    ) -> Result<Self> {
        let remote = Remote::connect(servers, connect, ui)?;
        let info = remote.info(stale)?;
        let mut options = ReaderOptions::default();
        (options.follow, options.min_index) = (follow, info.last);
        let reader = remote.client.reader_with(start, options);
        Ok(Self { remote, reader, batch: None, follow, silent: None, ui: *ui })
    }

    /// Reports once that no server sends.
    fn report_silence(&mut self) {
        if self.reader.server().is_some() {
            self.silent = None;
            return;
        }
        let (since, reported) = self.silent.get_or_insert((Instant::now(), false));
        if since.elapsed() > REPORT_AFTER && !std::mem::replace(reported, true) {
            let seconds = ReaderOptions::default().timeout.as_secs();
            self.ui.say(&format!("no server sends records: waiting up to {seconds} s for one"));
        }
    }
}

impl Source for Servers {
    fn next(&mut self, take: &mut dyn FnMut(&Record<'_>) -> Result<()>) -> Result<bool> {
        loop {
            if let Some((batch, given)) = &mut self.batch {
                if let Some(record) = batch.get(*given) {
                    *given += 1;
                    return take(&record).map(|()| true);
                }
                self.batch = None;
            }
            if self.follow {
                return Ok(false);
            }
            match self.remote.wait(self.reader.next_batch()).map_err(failure)? {
                Some(batch) => self.batch = Some((batch, 0)),
                None => return Ok(false),
            }
        }
    }

    fn skip_batch(&mut self) -> Result<()> {
        self.batch = None;
        self.remote.wait(self.reader.skip_batch()).map(drop).map_err(failure)
    }

    fn wait(&mut self, time: Duration) -> Result<bool> {
        let reader = &mut self.reader;
        let next = self.remote.wait(async { tokio::time::timeout(time, reader.next_batch()).await });
        match next {
            Err(_) => {
                self.report_silence();
                Ok(false)
            }
            Ok(batch) => {
                self.batch = batch.map_err(failure)?.map(|batch| (batch, 0));
                Ok(self.batch.is_some())
            }
        }
    }
}
