//! `chiplog read --salvage`: every sound record of a log that may be damaged anywhere, even if it does not
//! open. Reads the files themselves and skips damage.

use super::{Form, Read};
use crate::commands::files::verify::{JsonFault, JsonTail};
use crate::common::failure::{Failure, Result};
use crate::common::output::Ui;
use chiplog::inspect::{Content, Event, Fault, Inspector, Severity, Tail};
use chiplog::{Index, Record, Start, Timestamp};
use serde_json::json;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;

/// The error of a group's directory.
const SHARED: &str = "this directory holds the records of many named logs, which --salvage would mix: \
                      `chiplog dump DIR --records` shows what is sound, with the log of each batch";

/// The number of printed records, and whether anything had to be skipped.
pub(super) struct Salvaged {
    pub(super) count: u64,
    pub(super) damaged: bool,
}

/// Writes all sound records that are not discarded, beginning at `start`.
pub(super) fn run(args: &Read, dir: &Path, start: Start, form: &Form<'_>, ui: &Ui) -> Result<Salvaged> {
    let inspector = Inspector::open(dir)?;
    let first = first_kept(&inspector)?;
    let (from, since) = match start {
        Start::Index(index) => (first.max(index), Timestamp(0)),
        Start::Timestamp(time) => (first, time),
        _ => (first, Timestamp(0)),
    };
    let limit = args.limit.unwrap_or(u64::MAX);
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let (mut count, mut failed) = (0, None);
    let report = inspector.walk(&mut |event| {
        let written = match event {
            Event::Block(block) if block.timestamp() >= since => {
                block.batches().iter().try_for_each(|(first, batch)| {
                    // An undecodable record is reported as a fault.
                    let Ok(records) = batch.records() else { return Ok(()) };
                    for (data, index) in records.iter().zip(first.get()..).map(|(d, i)| (d, Index(i))) {
                        if index >= from && count < limit {
                            form.write(&mut out, &Record { index, timestamp: block.timestamp(), data })?;
                            count += 1;
                        }
                    }
                    Ok(())
                })
            }
            Event::Fault(fault) => {
                say(fault, ui);
                Ok(())
            }
            Event::Tail(tail) => {
                say_tail(tail, ui);
                Ok(())
            }
            _ => Ok(()),
        };
        failed = written.err();
        if failed.is_some() || count >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(failure) = failed {
        return Err(failure);
    }
    out.flush().map_err(|e| Failure::output(&e))?;
    Ok(Salvaged { count, damaged: report.corrupt > 0 })
}

/// The first record that is not discarded, as far as the files show.
///
/// # Errors
/// The files hold the records of many logs.
fn first_kept(inspector: &Inspector) -> Result<Index> {
    let (mut first, mut is_shared) = (Index(1), false);
    inspector.walk(&mut |event| {
        if let Event::Block(block) = event {
            // Also a damaged block: the salvage would skip it, and its kind is known.
            is_shared |= block.kind() == "mixed";
            if block.fault().is_none() && matches!(block.kind(), "opening" | "command") {
                match block.content() {
                    Ok(Content::Opening { log_first, logs_bytes, .. }) => {
                        first = first.max(log_first);
                        is_shared |= logs_bytes > 0;
                    }
                    Ok(Content::Discard { first: kept }) => first = first.max(kept),
                    Ok(Content::OpenLog { .. }) => is_shared = true,
                    _ => {}
                }
            }
        }
        if is_shared { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if is_shared {
        return Err(Failure::usage(SHARED));
    }
    Ok(first)
}

/// Reports on standard error that the tail is left out: it may have been confirmed, and nothing proves it.
fn say_tail(tail: &Tail, ui: &Ui) {
    if ui.quiet {
        return;
    }
    let mut stderr = io::stderr().lock();
    let _ = if ui.json {
        writeln!(stderr, "{}", json!({ "tail": JsonTail::from(tail) }))
    } else {
        let Tail { file, offset, .. } = tail;
        writeln!(
            stderr,
            "chiplog: the tail is left out: {file} at offset {offset}: an unfinished or damaged write; nothing proves that it was durable"
        )
    };
}

/// Reports on standard error what is skipped.
fn say(fault: &Fault, ui: &Ui) {
    if ui.quiet || !matches!(fault.severity, Severity::Corrupt | Severity::Undecodable) {
        return;
    }
    let mut stderr = io::stderr().lock();
    // A closed standard error is no reason to stop.
    let _ = if ui.json {
        writeln!(stderr, "{}", json!({ "skipped": JsonFault::from(fault) }))
    } else {
        writeln!(stderr, "chiplog: skipped: {fault}")
    };
}
