//! `chiplog discard`: gives up the records before an index.

use crate::engine;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::human;
use crate::target::Target;
use crate::ui::Ui;
use chiplog::Index;
use clap::Args;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  chiplog discard ./log 5001
      Records 1 to 5000 are gone; the log begins at 5001.
  chiplog discard ./log $(chiplog info ./log --json | jq .last+1)
      All records are gone; the next one keeps its number.
  chiplog discard ./log 1000000 --fast-forward
      The next record gets index 1000000.";

/// Discard the records before FIRST, for good.
///
/// Durable when it returns. Files are deleted or reused as wholes, so room comes free in steps of a segment.
/// Discarding what is discarded already changes nothing. The log must not be open for writing elsewhere
/// (status 5).
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Discard {
    /// The log's directory.
    #[arg(value_name = "DIR")]
    target: Target,

    /// The first record to keep.
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    first: u64,

    /// Allow FIRST to lie beyond the next record: the log goes on from there, all before it is gone.
    #[arg(long)]
    fast_forward: bool,
}

#[derive(Serialize)]
struct Discarded {
    first: u64,
    last: u64,
    discarded: u64,
    bytes_used: u64,
}

impl Discarded {
    fn words(&self) -> String {
        let rest = if self.last < self.first {
            format!("the log is empty, the next record is {}", self.last + 1)
        } else {
            format!("the log holds {} to {} ({})", self.first, self.last, human::bytes(self.bytes_used))
        };
        format!("discarded {}; {rest}", human::many(self.discarded, "record", "records"))
    }
}

pub(crate) fn run(args: &Discard, ui: &Ui) -> Result<Exit> {
    let dir = args.target.directory()?;
    let log = engine::open_existing(dir)?;
    let before = log.info();
    let next = before.last.next();
    if args.first > next.get() && !args.fast_forward {
        let why = format!(
            "{} lies beyond the end: the last record is {}, so {next} discards all; \
             to let the log go on from {0}, say --fast-forward",
            args.first, before.last
        );
        return Err(Failure::usage(why));
    }
    log.discard(Index(args.first))?;
    let after = log.info();
    log.close()?;
    let gone = after.first.min(next).get().saturating_sub(before.first.get());
    let discarded = Discarded {
        first: after.first.get(),
        last: after.last.get(),
        discarded: gone,
        bytes_used: after.bytes_used,
    };
    ui.result(&discarded, Discarded::words)?;
    Ok(Exit::Ok)
}
