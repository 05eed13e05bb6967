//! `chiplog doctor`: examines whether a directory on this machine is a good place for a log.
//!
//! It collects what the kernel reports ([`machine`]), measures durable writes ([`sync`]), and turns both into
//! findings in plain words.

mod findings;
mod machine;
mod sync;

use crate::commands::files::info::describe;
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::locks;
use crate::common::locks::Holder;
use crate::common::number::whole_number;
use crate::common::output::Ui;
use crate::connect::target::Target;
use chiplog::ErrorKind;
use clap::Args;
use findings::{Finding, Level, findings};
use machine::{Device, FileSystem, Limits, Space, System};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;
use sync::Latency;

const EXAMPLES: &str = "\
Examples:
  chiplog doctor /var/lib/chiplog
  chiplog doctor ./log --seconds 10 --json | jq .sync.p99_micros";

/// Examine whether a directory is a good place for a log, and measure durable writes there.
///
/// Shows the file system and its mount options, the device, free space, the limits of the process, the
/// kernel, and the process that has the log open. Measures how long a write with its fdatasync takes, on a
/// scratch file in the directory that is removed at the end; an existing log is not touched. Then it lists
/// the problems found.
///
/// Status 0: fit, perhaps with warnings. Status 1: a problem makes the place unfit.
///
/// Fields of --json: directory, file_system, device, space, limits, system, writer, sync (times in
/// microseconds), findings (each {"level": "note" | "warning" | "problem", "message"}), fit.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// The directory of a log, or of a log to be made. It has to exist.
    #[arg(value_name = "DIR")]
    target: Target,

    /// Duration of the measurement, in seconds.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = whole_number::<u64>("a number of seconds", 0..=3600))]
    seconds: u64,

    /// Number of bytes to write before each fdatasync.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = write_bytes)]
    write_bytes: u32,
}

fn write_bytes(text: &str) -> Result<u32, String> {
    let bytes = format::parse_bytes(text)?;
    let fits = (1..=u64::from(sync::WRITE_BYTES_MAX)).contains(&bytes);
    let bytes = u32::try_from(bytes).ok().filter(|_| fits);
    bytes.ok_or_else(|| format!("give 1 B to {}", format::bytes(sync::WRITE_BYTES_MAX.into())))
}

/// The results of the examination.
#[derive(Serialize)]
struct Examination {
    directory: PathBuf,
    file_system: FileSystem,
    device: Option<Device>,
    space: Space,
    limits: Limits,
    system: System,
    writer: Option<Holder>,
    sync: Option<Latency>,
    findings: Vec<Finding>,
    fit: bool,
}

pub(crate) fn run(args: &Doctor, ui: &Ui) -> Result<Exit> {
    let dir = args.target.directory()?;
    if !dir.is_dir() {
        let what = if dir.exists() { "is not a directory" } else { "does not exist" };
        let why = format!("{} {what}: make the directory, or name its parent", dir.display());
        return Err(Failure::new(ErrorKind::NotFound, why));
    }
    let file_system = FileSystem::of(dir)?;
    let bar = ui.progress(None, "measuring");
    let sync = match args.seconds {
        0 => None,
        _ if file_system.read_only => None,
        seconds => Some(sync::measure(dir, args.write_bytes, Duration::from_secs(seconds), &bar)?),
    };
    bar.finish_and_clear();
    let mut examination = Examination {
        directory: dir.to_path_buf(),
        device: Device::of(dir),
        space: Space::of(dir)?,
        limits: Limits::now(),
        system: System::now(),
        writer: locks::holder(dir),
        file_system,
        sync,
        findings: Vec::new(),
        fit: true,
    };
    examination.findings = findings(&examination);
    examination.fit = examination.findings.iter().all(|f| f.level != Level::Problem);
    // The result is printed even with --quiet.
    Ui { quiet: false, ..*ui }.result(&examination, Examination::words)?;
    Ok(if examination.fit { Exit::Ok } else { Exit::Failure })
}

impl Examination {
    fn words(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| _ = writeln!(out, "{name:<12} {value}");
        line("directory", self.directory.display().to_string());
        let fs = &self.file_system;
        line("file system", format!("{} on {}, mounted at {}", fs.kind, fs.source, fs.mount_point.display()));
        line("options", fs.options.join(","));
        if let Some(device) = &self.device {
            line("device", device.words());
        }
        let Space { free_bytes, total_bytes, free_files } = self.space;
        let files = free_files.map_or(String::new(), |n| format!(", room for {} files", format::count(n)));
        line("space", format!("{} free of {}{files}", format::bytes(free_bytes), format::bytes(total_bytes)));
        line("open files", self.limits.open_files_words());
        line("system", self.system.words());
        line("writer", self.writer.as_ref().map_or("none".into(), describe));
        if let Some(sync) = &self.sync {
            out.push('\n');
            out.push_str(&sync.words());
        }
        out.push('\n');
        for finding in &self.findings {
            _ = writeln!(out, "{}: {}", finding.level.name(), finding.message);
        }
        if self.findings.iter().all(|f| f.level == Level::Note) {
            out.push_str("a good place for a log\n");
        }
        out
    }
}
