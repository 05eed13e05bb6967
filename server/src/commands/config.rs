//! `chiplog config`: a server's configuration, checked and shown.

use super::serve::Settings;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::serve::Config;
use crate::ui::{Ui, print};
use chiplog::ErrorKind;
use clap::{Args, Subcommand};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  chiplog config show > chiplog.toml       a file with all keys and their defaults
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
    },
    /// Print the configuration that file, environment and flags come to, with all defaults, as a file.
    Show {
        /// The file; as --config, which then is left out.
        file: Option<PathBuf>,

        #[command(flatten)]
        settings: Box<Settings>,
    },
}

pub(crate) fn run(args: &ConfigCommand, ui: &Ui) -> Result<Exit> {
    match &args.what {
        What::Check { file, config } => {
            let Some(file) = file.as_deref().or(config.as_deref()) else {
                return Err(Failure::usage("give the file to check"));
            };
            let config = Config::load(Some(file), &[])?;
            crate::serve::check(&config)?;
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
