//! `chiplog token`: makes a new token, and the line by which servers recognize it.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::output::{Ui, print};
use crate::common::secret;
use chiplog_net::listener::auth::roles::{Role, digest_of, new_token};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  chiplog token --role append
  chiplog token --role read --comment reports --out reader.token >> /etc/chiplog/tokens
      The token is written to its own file, its line to the file that the servers read. Append the
      line on every server.
  chiplog read log1:7411 --tls-authority ca.pem --token-file reader.token

Roles:
  read    records, positions, status
  append  append, and read
  admin   everything: also discards, and changes of the cluster

JSON fields:
  role, token, line; with --out: role, line, out";

/// Make a token for servers that require one.
///
/// Prints two parts: the token, which the client sends (--token-file, or CHIPLOG_TOKEN), and a line for the
/// file of tokens that the servers read (`auth.tokens`). With --out the token is written to a file that only
/// its owner may read, and only the line is printed.
///
/// The line holds the token's role and its SHA-256, from which the token cannot be derived. Nothing else is
/// stored.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Token {
    /// The role: read, append or admin.
    #[arg(long, default_value = "read", value_name = "ROLE", value_parser = str::parse::<Role>)]
    role: Role,
    /// Write the token to this file, readable only by its owner, instead of printing it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// A comment for the line, after `#`, such as who uses the token. The servers ignore it.
    #[arg(long, value_name = "TEXT", value_parser = comment)]
    comment: Option<String>,
    /// Replace FILE if it exists.
    #[arg(long, requires = "out")]
    overwrite: bool,
}

/// Parses a comment of one line.
fn comment(text: &str) -> Result<String, String> {
    match text.chars().any(char::is_control) {
        true => Err("it has to be one line of text".into()),
        false => Ok(text.trim().to_owned()),
    }
}

pub(crate) fn run(args: &Token, ui: &Ui) -> Result<Exit> {
    let token = new_token().map_err(Failure::from)?;
    let comment = args.comment.as_deref().filter(|text| !text.is_empty());
    let comment = comment.map_or_else(String::new, |text| format!("  # {text}"));
    let line = format!("{}:{}{comment}", args.role, digest_of(&token));
    if let Some(out) = &args.out {
        secret::write(out, format!("{token}\n").as_bytes(), args.overwrite)?;
        if ui.json {
            ui.json(&json!({ "role": args.role.name(), "line": line, "out": out }))?;
        } else {
            print(format!("{line}\n").as_bytes())?;
        }
    } else if ui.json {
        ui.json(&json!({ "role": args.role.name(), "token": token, "line": line }))?;
    } else {
        print(format!("token  {token}\nline   {line}\n").as_bytes())?;
    }
    Ok(Exit::Ok)
}
