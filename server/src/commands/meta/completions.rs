//! `chiplog completions`: the completion scripts for shells.

use crate::common::exit::Exit;
use crate::common::failure::Result;
use crate::common::output::{Ui, print};
use clap::Args;
use clap_complete::Shell;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  chiplog completions bash > ~/.local/share/bash-completion/completions/chiplog
  chiplog completions zsh > \"${fpath[1]}/_chiplog\"
  chiplog completions fish > ~/.config/fish/completions/chiplog.fish";

/// Print a completion script for a shell.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

pub(crate) fn run(args: &Completions, mut root: clap::Command, ui: &Ui) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut root, "chiplog", &mut script);
    if ui.json {
        let script = String::from_utf8_lossy(&script);
        ui.json(&json!({ "shell": args.shell.to_string(), "script": script }))?;
    } else {
        print(&script)?;
    }
    Ok(Exit::Ok)
}
