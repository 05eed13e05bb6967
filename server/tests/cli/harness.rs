//! Runs the built program and captures its output.

use crate::limited::Limited;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The result of a run: exit code, standard output, standard error.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    /// Standard output as one JSON object.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|e| panic!("{e}: {:?} {}", self.text(), self.err))
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The last line of standard error as a JSON object.
    pub(crate) fn error(&self) -> Value {
        serde_json::from_str(self.err.lines().last().unwrap()).unwrap_or_else(|e| panic!("{e}: {}", self.err))
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}{}", String::from_utf8_lossy(&self.out), self.err);
        self
    }

    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}{}", String::from_utf8_lossy(&self.out), self.err);
        self
    }
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chiplog"));
    command
        .args(args)
        .env_remove("CHIPLOG_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(crate) fn run_with(args: &[&str], input: &[u8]) -> Ran {
    let mut child = command(args).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || {
        let _ = stdin.write_all(&input); // a command that fails early does not read it all
    });
    let limited = Limited::new(&child);
    let output = child.wait_with_output().unwrap();
    drop(limited);
    feeder.join().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: output.stdout, err }
}

pub(crate) fn run(args: &[&str]) -> Ran {
    run_with(args, b"")
}

/// A directory with a log of small segments.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
}

impl Place {
    pub(crate) fn empty() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// `n` records, "record 1" and so on.
    pub(crate) fn with(n: u64) -> Self {
        let place = Self::empty();
        place.append(&numbered(1, n)).ok();
        place
    }

    pub(crate) fn log(&self) -> String {
        self.dir.path().join("log").to_str().unwrap().to_string()
    }

    pub(crate) fn file(&self, number: u64) -> PathBuf {
        Path::new(&self.log()).join(format!("{number:020}.seg"))
    }

    pub(crate) fn append(&self, lines: &[u8]) -> Ran {
        run_with(&["append", &self.log(), "--segment-bytes", "64KiB", "--batch", "10", "--json"], lines)
    }

    /// Runs a command on the log.
    pub(crate) fn run(&self, name: &str, args: &[&str]) -> Ran {
        run(&[&[name, &self.log()], args].concat())
    }

    /// Flips a bit.
    pub(crate) fn flip(&self, number: u64, offset: u64) {
        let mut bytes = fs::read(self.file(number)).unwrap();
        bytes[offset as usize] ^= 4;
        fs::write(self.file(number), bytes).unwrap();
    }

    /// Removes the proof of the last block, as if the writer had been killed just after it confirmed.
    pub(crate) fn unprove(&self) {
        let mut all = self.run("dump", &["--json"]).ok().lines();
        all.retain(|line| line["type"] == "block");
        let at = |block: &Value, name: &str| block[name].as_u64().unwrap();
        for block in all.iter().rev().take_while(|block| block["kind"] == "marker") {
            let mut bytes = fs::read(self.file(at(block, "segment"))).unwrap();
            let offset = at(block, "offset") as usize;
            bytes[offset..offset + at(block, "bytes") as usize].fill(0);
            fs::write(self.file(at(block, "segment")), bytes).unwrap();
        }
    }

    /// The data blocks as `dump` lists them.
    pub(crate) fn blocks(&self) -> Vec<Value> {
        let mut all = self.run("dump", &["--json"]).ok().lines();
        all.retain(|line| line["type"] == "block" && line["kind"] == "data");
        all
    }
}

pub(crate) fn numbered(from: u64, to: u64) -> Vec<u8> {
    (from..=to).flat_map(|n| format!("record {n}\n").into_bytes()).collect()
}

/// The names of an object's fields.
#[track_caller]
pub(crate) fn has_fields(value: &Value, names: &[&str]) {
    let found: BTreeSet<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(found, names.iter().copied().collect(), "{value}");
}

#[track_caller]
pub(crate) fn is_error(ran: &Ran, kind: &str, code: u64) {
    let error = &ran.error()["error"];
    has_fields(error, &["kind", "code", "message"]);
    assert_eq!((error["kind"].as_str(), error["code"].as_u64()), (Some(kind), Some(code)));
    assert!(ran.out.is_empty(), "{}", ran.text());
}

/// Waits for a process that the test started itself.
pub(crate) fn finish(child: Child) -> Ran {
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: output.stdout, err }
}
