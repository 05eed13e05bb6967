//! The payload slices of a log, as `status` and `gc` show them.
//!
//! Must not know: which of them are needed.

use crate::common::format;
use chiplog::backup::Inventory;
use serde::Serialize;

/// A line about payload behind all slices of a log.
pub(super) fn tail_words(records: u64, bytes: u64) -> String {
    let records = format::many(records, "record", "records");
    format!("  {records} in payload behind them, {}: `fetch` brings them back, too\n", format::bytes(bytes))
}

/// The payload slices of a log.
#[derive(Serialize)]
pub(super) struct Payloads {
    payloads: u64,
    payload_bytes: u64,
    unneeded_payloads: u64,
    unneeded_payload_bytes: u64,
    payloads_unclear: Option<String>,
}

impl Payloads {
    pub(super) fn new(there: &Inventory) -> Self {
        Self {
            payloads: there.payloads.objects,
            payload_bytes: there.payloads.bytes,
            unneeded_payloads: there.unneeded_payloads.objects,
            unneeded_payload_bytes: there.unneeded_payloads.bytes,
            payloads_unclear: there.payloads_unclear.clone(),
        }
    }

    /// Their number and bytes with those of slices of entries.
    pub(super) fn with_slices(&self, slices: u64, bytes: u64) -> (u64, u64) {
        let bytes = bytes + self.payload_bytes + self.unneeded_payload_bytes;
        (slices + self.payloads + self.unneeded_payloads, bytes)
    }

    /// How many nothing needs.
    pub(super) fn unneeded(&self) -> u64 {
        self.unneeded_payloads
    }

    /// A line for each thing there is to say. `kept`: begins the line about those that may be needed. `fate`: what becomes of the others.
    pub(super) fn words(&self, kept: &str, fate: &str) -> String {
        let some = |count, bytes| {
            format!("{}, {}", format::many(count, "payload slice", "payload slices"), format::bytes(bytes))
        };
        let mut lines = String::new();
        if self.payloads > 0 {
            let there = some(self.payloads, self.payload_bytes);
            lines += &format!("  {kept}{there}: records that may be in no object are there\n");
        }
        if let Some(why) = &self.payloads_unclear {
            lines += &format!(
                "  it cannot be seen which payload slices are needed, and all of them count as needed: {why}\n"
            );
        }
        if self.unneeded_payloads > 0 {
            let unneeded = some(self.unneeded_payloads, self.unneeded_payload_bytes);
            lines += &format!("  not needed: {unneeded}: {fate}\n");
        }
        lines
    }
}
