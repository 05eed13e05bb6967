//! `chiplog config`: checks and shows a server's configuration.

use crate::commands::run::serve::Settings;
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::output::{Ui, print};
use crate::serve::Config;
use crate::serve::config::Over;
use crate::serve::environment;
use chiplog::ErrorKind;
use clap::{Args, Subcommand};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  chiplog config show > chiplog.toml       a file with all keys that have a value
  chiplog config show chiplog.toml --set zone=west
  chiplog config check chiplog.toml        before restarting a server";

/// Check or show a server's configuration.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ConfigCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Check a file: unknown keys, values out of bounds, the files of certificates, keys and tokens, whether
    /// other servers could reach this one and would accept its certificates.
    ///
    /// `chiplog serve` checks what depends on its machine: names, ports in use, the data.
    Check {
        /// The file.
        #[arg(required_unless_present = "config")]
        file: Option<PathBuf>,

        /// The file, named as for `config show` and `serve`.
        #[arg(long, value_name = "FILE", conflicts_with = "file")]
        config: Option<PathBuf>,

        /// The node's number, if `serve` gets it from its command line or environment instead of the file.
        #[arg(long, env = "CHIPLOG_NODE", value_name = "N")]
        node: Option<String>,
    },
    /// Print the configuration that results from file, environment and flags, as a file: all keys that have a
    /// value, defaults included.
    Show {
        /// The file; instead of --config.
        file: Option<PathBuf>,

        #[command(flatten)]
        settings: Box<Settings>,
    },
}

pub(crate) fn run(args: &ConfigCommand, ui: &Ui) -> Result<Exit> {
    match &args.what {
        What::Check { file, config, node } => {
            let Some(file) = file.as_deref().or(config.as_deref()) else {
                return Err(Failure::usage("give the file to check"));
            };
            let set = std::env::vars_os().filter(|(name, _)| name == "CHIPLOG__NODE");
            let mut over = environment::keys(set)?;
            over.extend(node.as_ref().map(|node| Over {
                key: "node".to_owned(),
                value: node.clone(),
                by: "--node or CHIPLOG_NODE".to_owned(),
            }));
            let config = Config::load(Some(file), &over)?;
            crate::serve::check(&config)?;
            if config.node == 0 {
                return Err(Failure::usage(format!(
                    "{} is in order, except that `node` is missing: give `node = N` in the file, --node N, or CHIPLOG_NODE in the environment",
                    file.display()
                )));
            }
            ui.result(&json!({ "ok": true }), |_| format!("{} is in order", file.display()))?;
        }
        What::Show { file, settings } => {
            let config = settings.load_of(file.as_deref())?.filled()?;
            if ui.json {
                ui.json(&config)?;
            } else {
                let text =
                    toml::to_string(&config).map_err(|e| Failure::new(ErrorKind::Io, e.to_string()))?;
                print(text.as_bytes())?;
            }
        }
    }
    Ok(Exit::Ok)
}
