//! `chiplog dump`: shows a log's files: segments, blocks, batches, records.

use super::verify::{JsonFault, JsonTail, line};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::number::whole_number;
use crate::common::output::{Ui, json_line};
use crate::connect::open_log::codec_name;
use crate::connect::target::Target;
use chiplog::inspect::{Block, Content, Event, Inspector, Segment, SegmentEnd};
use chiplog::{Batch, Index, LogNumber, LogOptions, Timestamp};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;

const EXAMPLES: &str = "\
Examples:
  chiplog dump ./log
      Every block: its offset, its kind, and the records in it.
  chiplog dump ./log --segment 3 --records
      One file, with a preview of each record.
  chiplog dump ./log --records=hex --preview 64
      Longer previews, in hexadecimal.
  chiplog dump ./log --json | jq -c 'select(.type == \"block\" and .kind == \"command\")'
      All commands: discards, sessions.
  chiplog dump ./logs/group-1 --json | jq -c 'select(.kind == \"mixed\") | .batches[] | select(.log == 7)'
      The appends of one log, of a group of named logs.";

/// Show what is in a log's files: segments, blocks, batches, and with --records each record.
///
/// Reads the files themselves, so it works on a log that does not open, and beside a running writer. Faults
/// are shown where they are, and the dump continues after them (status 3 at the end).
///
/// With --json each segment, block, fault and end of a segment is one line. Its "type" is segment, block
/// (with "batches", which with --records contain "records"), fault, tail or segment_end.
///
/// In a group of named logs a block of kind mixed holds appends of many logs. Its "first" counts the records of
/// all of them; each batch has its "log", and the index of its first record there.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Dump {
    /// The log's directory.
    #[arg(value_name = "DIR")]
    target: Target,

    /// Show only the segment with this number (its file's name).
    #[arg(long, value_name = "NUMBER", value_parser = whole_number::<u64>("the number of a segment", 0..=u64::MAX))]
    segment: Option<u64>,

    /// Show the beginning of each record, as escaped text or in hexadecimal.
    #[arg(long, value_name = "HOW", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "text")]
    records: Option<Preview>,

    /// How many bytes of a record to show.
    #[arg(long, value_name = "BYTES", default_value_t = 32, requires = "records", value_parser = whole_number::<usize>("a number of bytes", 0..=u64::MAX))]
    preview: usize,
}

/// How records are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Preview {
    /// Text, with unprintable bytes escaped.
    Text,
    /// Hexadecimal digits.
    Hex,
}

#[derive(Serialize)]
struct JsonBlock {
    r#type: &'static str,
    segment: u64,
    offset: u64,
    bytes: u64,
    kind: &'static str,
    raft_index: u64,
    term: u64,
    first: u64,
    records: u32,
    /// None: the block has no records.
    timestamp: Option<u64>,
    time: Option<String>,
    durable_upto: u64,
    fault: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batches: Option<Vec<JsonBatch>>,
}

#[derive(Serialize)]
struct JsonBatch {
    /// None: the directory's own log.
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<u32>,
    first: u64,
    records_count: u32,
    bytes: usize,
    codec: &'static str,
    session: Option<u64>,
    sequence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<Vec<JsonPreview>>,
}

#[derive(Serialize)]
struct JsonPreview {
    index: u64,
    size: usize,
    preview: String,
}

impl Dump {
    fn preview(&self, data: &[u8]) -> String {
        let part = &data[..data.len().min(self.preview)];
        match self.records {
            Some(Preview::Hex) => data_encoding::HEXLOWER.encode(part),
            _ => format::escape(part),
        }
    }

    /// Consecutive batches of a log, the first of which begins at `next`.
    fn batches(&self, log: LogNumber, mut next: Index, batches: &[Batch]) -> Vec<JsonBatch> {
        let log = (!log.is_none()).then_some(log.get());
        let each = batches.iter().map(|batch| {
            let first = next;
            next = next.plus(batch.count().into());
            self.batch(log, first, batch)
        });
        each.collect()
    }

    fn batch(&self, log: Option<u32>, first: Index, batch: &Batch) -> JsonBatch {
        let records = self.records.and_then(|_| batch.records().ok()).map(|records| {
            let each = records.iter().zip(first.get()..);
            each.map(|(data, index)| JsonPreview { index, size: data.len(), preview: self.preview(data) })
                .collect()
        });
        JsonBatch {
            log,
            first: first.get(),
            records_count: batch.count(),
            bytes: batch.as_bytes().len(),
            codec: codec_name(batch.codec()),
            session: batch.session().map(|s| s.0.get()),
            sequence: batch.session().map(|s| s.1.get()),
            records,
        }
    }

    fn block(&self, segment: u64, block: &Block<'_>) -> JsonBlock {
        let content = block.fault().is_none().then(|| block.content().ok()).flatten();
        let (content, batches) = match content {
            Some(Content::Batches(batches)) => {
                (None, Some(self.batches(LogNumber::OWN, block.first(), &batches)))
            }
            Some(Content::Runs(runs)) => {
                let runs = runs.iter().flat_map(|run| self.batches(run.log, run.first, &run.batches));
                (None, Some(runs.collect()))
            }
            Some(other) => (describe(&other), None),
            None => (None, None),
        };
        let at = Some(block.timestamp()).filter(|at| at.get() > 0);
        JsonBlock {
            r#type: "block",
            segment,
            offset: block.offset(),
            bytes: block.bytes(),
            kind: block.kind(),
            raft_index: block.raft_index().get(),
            term: block.term().get(),
            first: block.first().get(),
            records: block.record_count(),
            timestamp: at.map(Timestamp::get),
            time: at.map(format::time),
            durable_upto: block.durable_upto(),
            fault: block.fault().map(str::to_string),
            content,
            batches,
        }
    }
}

/// The content of a block without records.
fn describe(content: &Content) -> Option<Value> {
    match content {
        Content::HardState { term, vote, commit, kept } => {
            let mut state = json!({ "term": term.get(), "vote": vote, "commit": commit.get() });
            if let Some(kept) = kept {
                state["kept_first"] = json!(kept.get());
            }
            Some(state)
        }
        Content::Opening {
            base,
            log_first,
            configuration_bytes,
            sessions_bytes,
            options,
            logs_bytes,
            objects_bytes,
        } => {
            let mut opening = json!({
                "base_raft_index": base.0.get(),
                "base_term": base.1.get(),
                "log_first": log_first.get(),
                "configuration_bytes": configuration_bytes,
                "sessions_bytes": sessions_bytes,
                "options": option_values(options),
            });
            if *logs_bytes > 0 {
                opening["logs_bytes"] = json!(logs_bytes);
            }
            if *objects_bytes > 0 {
                opening["objects_bytes"] = json!(objects_bytes);
            }
            Some(opening)
        }
        Content::CutObject { number, entries, records } => Some(json!({
            "command": "cut_object",
            "object": number,
            "raft_first": entries.0.get(),
            "raft_last": entries.1.get(),
            "first": records.0.get(),
            "next": records.1.get(),
        })),
        Content::StoreObject { number, bytes, crc } => {
            Some(json!({ "command": "store_object", "object": number, "bytes": bytes, "crc": crc }))
        }
        Content::MoveObjectRows { below, holder } => {
            Some(json!({ "command": "move_object_rows", "below": below, "holder": holder }))
        }
        Content::BeginObjects { number } => Some(json!({ "command": "begin_objects", "object": number })),
        Content::Discard { first } => Some(json!({ "command": "discard", "first": first.get() })),
        Content::OpenSession { log, idle_max_ms } if log.is_none() => {
            Some(json!({ "command": "open_session", "idle_max_ms": idle_max_ms }))
        }
        Content::OpenSession { log, idle_max_ms } => {
            Some(json!({ "command": "open_session", "log": log.get(), "idle_max_ms": idle_max_ms }))
        }
        Content::OpenLog { log, start } => {
            Some(json!({ "command": "open_log", "log": log.get(), "start": start.get() }))
        }
        Content::SealLog { log } => Some(json!({ "command": "seal_log", "log": log.get() })),
        Content::DropLog { log } => Some(json!({ "command": "drop_log", "log": log.get() })),
        Content::DiscardLog { log, first } => {
            Some(json!({ "command": "discard_log", "log": log.get(), "first": first.get() }))
        }
        Content::CloseSession { id } => Some(json!({ "command": "close_session", "session": id.get() })),
        Content::SetOptions(options) => {
            Some(json!({ "command": "set_options", "options": option_values(options) }))
        }
        Content::SetLogOptions { log, options } => {
            Some(json!({ "command": "set_log_options", "log": log.get(), "options": option_values(options) }))
        }
        _ => None,
    }
}

/// The options of a log by name.
fn option_values(options: &LogOptions) -> Value {
    options.iter().map(|(option, value)| (option.name().to_owned(), Value::from(value))).collect()
}

/// A block of the dump, as text.
fn block_words(block: &JsonBlock) -> String {
    // A mixed block counts the records of all logs of its group.
    let (one, many) = if block.kind == "mixed" { ("ordinal", "ordinals") } else { ("record", "records") };
    let records = match block.records {
        0 => String::new(),
        1 => format!("  {one} {}", block.first),
        n => format!("  {many} {} to {}", block.first, block.first + u64::from(n) - 1),
    };
    let mut out = format!(
        "  {:>10}  {:<13} raft {} term {}{records}  {}  {}  durable to {}\n",
        block.offset,
        block.kind,
        block.raft_index,
        block.term,
        format::bytes(block.bytes),
        block.time.as_deref().unwrap_or("no time"),
        block.durable_upto
    );
    if let Some(Value::Object(fields)) = &block.content {
        let fields: Vec<String> =
            fields.iter().map(|(name, value)| format!("{} {value}", name.replace('_', " "))).collect();
        out.push_str(&format!("              {}\n", fields.join(", ")));
    }
    for batch in block.batches.iter().flatten() {
        let session = match (batch.session, batch.sequence) {
            (Some(session), Some(sequence)) => format!(", session {session} number {sequence}"),
            _ => String::new(),
        };
        let records = format::many(batch.records_count.into(), "record", "records");
        let bytes = format::bytes(batch.bytes as u64);
        let log = batch.log.map(|log| format!(" of log {log}")).unwrap_or_default();
        out.push_str(&format!(
            "              batch{log} from {}: {records}, {bytes}, codec {}{session}\n",
            batch.first, batch.codec
        ));
        for record in batch.records.iter().flatten() {
            let JsonPreview { index, size, preview } = record;
            out.push_str(&format!("              {index:>12}  {size:>8} B  {preview}\n"));
        }
    }
    out
}

fn segment_words(segment: &Segment) -> String {
    let Segment { number, file, bytes, state, id, log, .. } = segment;
    let bytes = format::bytes(*bytes);
    format!(
        "segment {number}  {file}  {}  {bytes}  id {:016x}  log {:032x}\n",
        state.name(),
        id.get(),
        log.get()
    )
}

fn end_words(end: &SegmentEnd) -> String {
    let entries = match end.index_entries {
        0 => "no block index".to_string(),
        n => format::many(n, "block index entry", "block index entries"),
    };
    let records = format::many(end.records, "record", "records");
    let blocks = format::many(end.blocks, "block", "blocks");
    format!("  {:>10}  end: {blocks}, {records}, {entries}\n", end.data_end)
}

pub(crate) fn run(args: &Dump, ui: &Ui) -> Result<Exit> {
    let inspector = Inspector::open(args.target.directory()?)?;
    let inspector = match args.segment {
        Some(number) => inspector.only(number),
        None => inspector,
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let (mut segment, mut failed) = (0, None);
    let report = inspector.walk(&mut |event| {
        if let Event::Segment(s) = event {
            segment = s.number;
        }
        let text = if ui.json {
            in_json(args, segment, &event)
        } else {
            Ok(in_words(args, segment, &event).into_bytes())
        };
        match text.and_then(|text| out.write_all(&text).map_err(|e| Failure::output(&e))) {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                failed = Some(failure);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(failure) = failed {
        return Err(failure);
    }
    out.flush().map_err(|e| Failure::output(&e))?;
    Ok(if report.corrupt > 0 { Exit::Corrupt } else { Exit::Ok })
}

fn in_words(args: &Dump, segment: u64, event: &Event<'_>) -> String {
    match event {
        Event::Segment(segment) => segment_words(segment),
        Event::Block(block) => block_words(&args.block(segment, block)),
        Event::Fault(fault) => format!("  {}", line(fault)),
        Event::Tail(tail) => {
            format!(
                "  {:>10}  unfinished or damaged write: nothing proves that it was durable ({})\n",
                tail.offset,
                format::bytes(tail.bytes)
            )
        }
        Event::SegmentEnd(end) => end_words(end),
        _ => String::new(),
    }
}

fn in_json(args: &Dump, segment: u64, event: &Event<'_>) -> Result<Vec<u8>> {
    let typed = |name: &str, value: Result<Value, serde_json::Error>| {
        let mut value = value.unwrap_or_default();
        if let Value::Object(fields) = &mut value {
            fields.insert("type".into(), name.into());
        }
        json_line(&value)
    };
    match event {
        Event::Segment(s) => json_line(&json!({
            "type": "segment",
            "segment": s.number,
            "file": s.file,
            "state": s.state.name(),
            "bytes": s.bytes,
            "segment_id": format!("{:016x}", s.id.get()),
            "log_id": format!("{:032x}", s.log.get()),
        })),
        Event::Block(block) => json_line(&args.block(segment, block)),
        Event::Fault(fault) => typed("fault", serde_json::to_value(JsonFault::from(*fault))),
        Event::Tail(tail) => typed("tail", serde_json::to_value(JsonTail::from(*tail))),
        Event::SegmentEnd(end) => json_line(&json!({
            "type": "segment_end",
            "segment": segment,
            "data_end": end.data_end,
            "blocks": end.blocks,
            "records": end.records,
            "index_entries": end.index_entries,
        })),
        _ => Ok(Vec::new()),
    }
}
