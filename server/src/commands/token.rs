//! `chiplog token`: a new token, and what a server has to know of it.

use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::ui::{Ui, print};
use chiplog_net::access::{Role, digest_of, new_token};
use clap::Args;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  chiplog token --role append
  chiplog token --role read --json | jq -r .token > reader.token     keep it secret
  echo \"$LINE # the reader\" >> /etc/chiplog/tokens                  the line, on every server
  chiplog read log1:7411 --tls-authority ca.pem --token-file reader.token";

/// Make a token for servers that ask for one.
///
/// Prints two halves: the token, which the client shows (--token-file, or CHIPLOG_TOKEN), and a line for the file of
/// tokens that the servers read (`auth.tokens`). The line holds the token's role and its SHA-256: who reads it cannot
/// make the token of it. Nothing is stored.
///
/// Roles: read (records, positions, status), append (and read), admin (all: also discards, and changes of the cluster).
///
/// Fields of --json: role, token, line.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Token {
    /// What it allows: read, append or admin.
    #[arg(long, default_value = "read", value_name = "ROLE", value_parser = str::parse::<Role>)]
    role: Role,
}

pub(crate) fn run(args: &Token, ui: &Ui) -> Result<Exit> {
    let token = new_token().map_err(Failure::from)?;
    let line = format!("{}:{}", args.role, digest_of(&token));
    if ui.json {
        ui.json(&json!({ "role": args.role.name(), "token": token, "line": line }))?;
    } else {
        print(format!("token  {token}\nline   {line}\n").as_bytes())?;
    }
    Ok(Exit::Ok)
}
