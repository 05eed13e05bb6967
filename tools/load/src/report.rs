//! Report: tables for people, JSON for programs.

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use std::fs;
use std::path::PathBuf;

/// The options of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Directory for the servers' files; each run makes a directory of its own there, and removes it after a success
    #[arg(long, value_name = "DIR", default_value = "target/load")]
    pub(crate) dir: PathBuf,
    /// Further settings of the servers, as in `chiplog serve --set`
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Destinations of the results.
#[derive(Clone, Debug, Args)]
pub(crate) struct Output {
    /// Results as JSON
    #[arg(long)]
    json: bool,
    /// Also write the JSON to this file
    #[arg(long, value_name = "FILE")]
    json_file: Option<PathBuf>,
}

impl Output {
    pub(crate) fn put(&self, table: &str, json: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(json)?;
        if let Some(path) = &self.json_file {
            fs::write(path, format!("{text}\n")).with_context(|| format!("writing {}", path.display()))?;
        }
        if self.json {
            println!("{text}");
        } else {
            print!("{table}");
        }
        Ok(())
    }
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
