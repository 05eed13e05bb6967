//! `chiplog config`: a server's configuration, checked and shown.

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
  chiplog config check chiplog.toml        before a server is started again";

/// Check or show a server's configuration.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ConfigCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Check a file: unknown keys, values out of bounds, files of certificates, keys and tokens, whether others could reach it,
    /// and whether they would take the certificates for this node's.
    ///
    /// What only the machine that it runs on can tell is left to `chiplog serve`: names, ports that are taken, the data.
    Check {
        /// The file.
        #[arg(required_unless_present = "config")]
        file: Option<PathBuf>,

        /// The same, as `config show` and `serve` take it.
        #[arg(long, value_name = "FILE", conflicts_with = "file")]
        config: Option<PathBuf>,

        /// The node's number, where `serve` gets it from its command line or environment and not from the file.
        #[arg(long, env = "CHIPLOG_NODE", value_name = "N")]
        node: Option<String>,
    },
    /// Print the configuration that file, environment and flags come to, as a file: all keys that have a value, defaults included.
    Show {
        /// The file; as --config, which then is left out.
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
                by: "--node, or CHIPLOG_NODE".to_owned(),
            }));
            let config = Config::load(Some(file), &over)?;
            crate::serve::check(&config)?;
            if config.node == 0 {
                return Err(Failure::usage(format!(
                    "{} is in order, except for `node`, which has to be given: `node = N` in the file, --node N, or CHIPLOG_NODE in the environment",
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
