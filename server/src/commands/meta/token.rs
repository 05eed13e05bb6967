//! `chiplog token`: makes a new token, and the line by which servers recognize it.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::output::{Ui, print};
use crate::common::secret;
use chiplog_net::listener::auth::roles::{Role, Scope, line_of, new_token};
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
  chiplog token --role append --logs tenant-7/ --logs orders
      A token that reaches only the named logs tenant-7/0, tenant-7/1 and so on, and all logs whose
      names begin with orders, such as orders and orders-eu.

Roles:
  read    records, positions, status
  append  append, and read
  admin   everything: also discards, changes of named logs, and changes of the cluster

Scope:
  Without --logs a token reaches everything that its role allows. With it, the role holds only for
  named logs (chiplog logs) that begin with a PREFIX: to read, append to, discard from, list,
  create, seal and delete them. All else is refused as PERMISSION_DENIED: other named logs, whether
  or not they exist, the default log of a server, and the administration of servers and clusters.
  End a PREFIX with / . or - where names go on like that: tenant-7 also begins tenant-70.

JSON fields:
  role, token, line; with --out: role, line, out; with --logs also logs, the prefixes without those
  that begin with another one";

/// Make a token for servers that require one.
///
/// Prints two parts: the token, which the client sends (--token-file, or CHIPLOG_TOKEN), and a line for the
/// file of tokens that the servers read (`auth.tokens`). With --out the token is written to a file that only
/// its owner may read, and only the line is printed.
///
/// The line holds the token's role, its SHA-256, from which the token cannot be derived, and its scope.
/// Nothing else is stored.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Token {
    /// The role: read, append or admin.
    #[arg(long, default_value = "read", value_name = "ROLE", value_parser = str::parse::<Role>)]
    role: Role,
    /// Reach only named logs whose names begin with this. Repeat it for several prefixes. The default is all
    /// logs, and the servers themselves.
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    logs: Vec<String>,
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

/// Checks a prefix of log names.
fn prefix(text: &str) -> Result<String, String> {
    Scope::check_prefix(text).map(|()| text.to_owned()).map_err(|why| format!("the prefix {why}"))
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
    let scope = match &args.logs[..] {
        [] => Scope::default(),
        prefixes => Scope::of(prefixes.iter().cloned()).map_err(Failure::from)?,
    };
    let comment = args.comment.as_deref().filter(|text| !text.is_empty());
    let comment = comment.map_or_else(String::new, |text| format!("  # {text}"));
    let line = format!("{}{comment}", line_of(&token, args.role, &scope));
    let mut fields = json!({ "role": args.role.name() });
    match &args.out {
        None => fields["token"] = json!(token),
        Some(out) => secret::write(out, format!("{token}\n").as_bytes(), args.overwrite)?,
    }
    fields["line"] = json!(line);
    if let Some(out) = &args.out {
        fields["out"] = json!(out);
    }
    if !scope.is_everything() {
        fields["logs"] = json!(scope.prefixes());
    }
    match &args.out {
        _ if ui.json => ui.json(&fields)?,
        Some(_) => print(format!("{line}\n").as_bytes())?,
        None => print(format!("token  {token}\nline   {line}\n").as_bytes())?,
    }
    Ok(Exit::Ok)
}
