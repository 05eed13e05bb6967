//! `chiplog logs`: creates, lists, deletes and seals the named logs of servers, and appends to several of them.

use crate::commands::data::append::together::Together;
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use crate::connect::cluster::{Asker, Connect};
use crate::connect::target::{Servers, Target, check_log_name};
use chiplog::{ErrorKind, Timestamp};
use chiplog_net::served::log_slot::SYSTEM_LOG;
use chiplog_net::wire::proto::v1::{
    CreateLogRequest, DeleteLogRequest, ListLogsRequest, LogInfo, SealLogRequest,
};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;
use std::env;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  chiplog logs create log1:7411 orders users
      Two logs. `chiplog append log1:7411/orders` and `chiplog read log1:7411/orders` use one.
  chiplog logs create log1:7411 account-2 --beside account-1
      In the same group, so that the same writes and syncs carry appends to both.
  chiplog logs list log1:7411 --prefix orders
  chiplog logs list log1:7411 --json | jq -r 'select(.records == 0).name'
      The logs without records.
  chiplog logs seal log1:7411 orders
      It takes no more appends, and its records stay.
  chiplog logs append-together log1:7411 account-1=withdraw account-2=deposit
      The lines of two files, each to its log: all of them, or none.
  chiplog logs delete log1:7411 orders --yes

Names:
  1 to 249 of the characters A-Z a-z 0-9 . _ -, not beginning with _, then perhaps / and the number
  of a partition: orders/3.

JSON fields, one object per line:
  create, list  name, number (no other log of the cluster ever has it), log_id, group, first, last
                (an empty log has last = first - 1), records, bytes_appended, last_timestamp (ms
                since 1970; null: nothing was appended), last_time (the same as text), sealed, known
                (false: the group runs on other servers, whose leader does not answer; then first is 1
                and what follows it is 0, null or false)
  delete        name, deleted (true)
  seal          name, sealed (true)
  append-together
                name, records, bytes, first, last, durability";

const CREATE_EXAMPLES: &str = "\
Examples:
  chiplog logs create log1:7411 orders users
  chiplog logs create log1:7411 account-2 --beside account-1";

const LIST_EXAMPLES: &str = "\
Examples:
  chiplog logs list log1:7411 --prefix orders
  chiplog logs list log1:7411 --json | jq -r 'select(.records == 0).name'

Columns:
  NAME         the log's name; the list is in the order of names
  FIRST, LAST  the indexes of the oldest and of the newest record that the log has. If it has none,
               LAST is FIRST - 1
  APPENDED     the size of all batches that were ever appended, as they are stored: with their headers,
               compressed or not, also of those that were discarded: in B, KiB (1,024 B), MiB and so on
  GROUP        the number of the group that holds the log
  LAST APPEND  the time of the newest append, in UTC; - if there was none
  SEALED       yes: the log takes no more appends
A ? in a column means that the leader of the log's group does not answer.
With --json, one object a line: `chiplog logs --help` lists its fields.";

const DELETE_EXAMPLES: &str = "\
Examples:
  chiplog logs delete log1:7411 orders           asks first
  chiplog logs delete log1:7411 orders users --yes";

const SEAL_EXAMPLES: &str = "\
Examples:
  chiplog logs seal log1:7411 orders";

/// Create, list, delete and seal the named logs of servers; append to several of them at once.
///
/// Servers keep named logs beside their default log if `groups` is set in their configuration, as by
/// `chiplog serve --set groups=2`. It is 0 by default, and can be set at any time: restart the servers with it, one
/// after the other. Each named log has its own records from 1, its own readers and its own discards. The logs of a
/// group share its files and its syncs, so thousands of logs cost little more than one.
///
/// Other commands take the name after the servers: HOST:PORT/NAME.
///
/// With several names the command stops at the first one that fails, and says which were not tried. If it is
/// unknown whether a change was made (status 5), run the same command again.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct LogsCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create logs. A name that exists is an error: status 2.
    ///
    /// Servers without `groups` keep no named logs: see `chiplog logs --help`.
    #[command(allow_missing_positional = true, after_long_help = CREATE_EXAMPLES)]
    Create {
        #[command(flatten)]
        of: Of,
        /// Create them in the group of this log. Without it, each is created in the group with the fewest logs.
        #[arg(long, value_name = "NAME", value_parser = log_name)]
        beside: Option<String>,
    },
    /// List the logs by name.
    #[command(after_long_help = LIST_EXAMPLES)]
    List {
        /// Servers of the cluster, by their address for clients. One that runs is enough; A,B,C are tried in
        /// turn.
        #[arg(value_name = "HOST:PORT", env = "CHIPLOG_SERVERS", value_parser = servers)]
        servers: Servers,
        /// Only the logs whose names begin with this.
        #[arg(long, value_name = "PREFIX", default_value = "")]
        prefix: String,
        /// List what an answering server knows, without a leader. The newest logs and records can be missing.
        #[arg(long)]
        stale: bool,
        #[command(flatten)]
        connect: Connect,
    },
    /// Delete logs with all their records, for good.
    ///
    /// On a terminal the command asks first; elsewhere it needs --yes (status 2 without it). Readers and appends
    /// of a deleted log fail. The name can be created again: that is another log.
    #[command(allow_missing_positional = true, after_long_help = DELETE_EXAMPLES)]
    Delete {
        #[command(flatten)]
        of: Of,
        /// Delete without a question.
        #[arg(long)]
        yes: bool,
    },
    AppendTogether(Together),
    /// Seal logs: they take no more appends, their records stay. For good.
    #[command(allow_missing_positional = true, after_long_help = SEAL_EXAMPLES)]
    Seal {
        #[command(flatten)]
        of: Of,
    },
}

/// The names of logs, and their servers.
#[derive(Args, Debug)]
struct Of {
    /// Servers of the cluster, by their address for clients. One that runs is enough; A,B,C are tried in turn.
    #[arg(value_name = "HOST:PORT", env = SERVERS)]
    servers: Option<String>,

    /// The names of the logs.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    #[command(flatten)]
    connect: Connect,
}

/// The variable that replaces the servers on the command line.
const SERVERS: &str = "CHIPLOG_SERVERS";

fn log_name(text: &str) -> Result<String, String> {
    check_log_name(text).map(|()| text.to_owned())
}

/// Parses the servers of a command that works on all their logs.
fn servers(text: &str) -> Result<Servers, String> {
    match text.parse()? {
        Target::Servers(servers) => {
            servers.unnamed("the names of logs come after the servers").map_err(|e| e.to_string())?;
            Ok(servers)
        }
        Target::Directory(dir) => {
            let dir = dir.display();
            Err(format!(
                "{dir} is not a server: give HOST:PORT; named logs of a directory are managed by the program that opens them"
            ))
        }
    }
}

impl Of {
    /// Tells servers from names: a name has no colon. `env`: the servers of the environment.
    ///
    /// # Errors
    /// `InvalidArgument`: there are no servers, or a name is not allowed.
    fn parts(&self, env: Option<&str>) -> Result<(Servers, Vec<String>)> {
        let mut names = self.names.clone();
        let given = match (&self.servers, env) {
            // The servers are in the environment, and the first argument is a name.
            (Some(first), Some(env)) if first != env && check_log_name(first).is_ok() => {
                names.insert(0, first.clone());
                env
            }
            (Some(given), _) => given,
            (None, _) => {
                let what = match names.first().is_some_and(|first| first.contains(':')) {
                    true => "give the names of the logs after HOST:PORT, as arguments of their own",
                    false => "give HOST:PORT of a server before the names of the logs",
                };
                return Err(Failure::usage(what));
            }
        };
        let servers = servers(given).map_err(Failure::usage)?;
        names.iter().try_for_each(|name| check_log_name(name)).map_err(Failure::usage)?;
        Ok((servers, names))
    }
}

/// A log as it is shown.
#[derive(Serialize)]
pub(super) struct Shown {
    pub(super) name: String,
    number: u32,
    pub(super) log_id: String,
    pub(super) group: u32,
    pub(super) first: u64,
    pub(super) last: u64,
    records: u64,
    pub(super) bytes_appended: u64,
    last_timestamp: Option<u64>,
    last_time: Option<String>,
    sealed: bool,
    /// The leader of the log's group answers.
    pub(super) known: bool,
}

impl Shown {
    pub(super) fn new(log: LogInfo) -> Self {
        let millis = Some(log.timestamp_nanos / 1_000_000).filter(|millis| *millis > 0);
        Self {
            name: log.name,
            number: log.number,
            log_id: log.log_id,
            group: log.group,
            first: log.first,
            last: log.last,
            records: (log.last + 1).saturating_sub(log.first),
            known: !log.elsewhere,
            bytes_appended: log.bytes_appended,
            last_timestamp: millis,
            last_time: millis.map(|millis| format::time(Timestamp(millis))),
            sealed: log.sealed,
        }
    }

    fn row(&self) -> [String; 7] {
        if !self.known {
            let [first, last, appended, time, sealed] = [(); 5].map(|()| "?".to_owned());
            return [self.name.clone(), first, last, appended, self.group.to_string(), time, sealed];
        }
        [
            self.name.clone(),
            self.first.to_string(),
            self.last.to_string(),
            format::bytes(self.bytes_appended),
            self.group.to_string(),
            self.last_time.clone().unwrap_or_else(|| "-".into()),
            if self.sealed { "yes" } else { "no" }.into(),
        ]
    }

    /// The contents, for the question before they are deleted.
    fn contents(&self) -> String {
        if !self.known {
            return format!("{} (the leader of its group does not answer)", self.name);
        }
        let records = format::many(self.records, "record", "records");
        format!("{} ({records}, {} were appended)", self.name, format::bytes(self.bytes_appended))
    }
}

/// The heads of the columns; the help of `logs list` explains them.
const COLUMNS: [&str; 7] = ["NAME", "FIRST", "LAST", "APPENDED", "GROUP", "LAST APPEND", "SEALED"];

fn table(logs: &[Shown]) -> String {
    let head = COLUMNS.map(str::to_owned);
    let rows: Vec<_> = [head].into_iter().chain(logs.iter().map(Shown::row)).collect();
    format::table(&rows)
}

/// How long a server may take to list logs.
const PATIENCE: Duration = Duration::from_secs(10);
/// The logs in one answer.
const PAGE: u32 = 10_000;
/// The names in a message.
const NAMED_MAX: usize = 5;

/// The servers of a cluster, and calls about their named logs.
pub(super) struct Cluster {
    asker: Asker,
    servers: Servers,
}

impl Cluster {
    pub(super) fn new(servers: Servers, connect: &Connect, ui: &Ui) -> Result<Self> {
        Ok(Self { asker: Asker::new(connect, ui)?, servers })
    }

    /// The system log: its leader creates and deletes logs, and knows all of them.
    fn system(&self) -> Servers {
        self.servers.with_log(SYSTEM_LOG)
    }

    /// Creates a log. If the answer to an earlier request was lost, a log that exists counts as created.
    fn create(&self, name: &str, beside: &str, ui: &Ui) -> Result<Shown> {
        let request = CreateLogRequest { name: name.to_owned(), beside: beside.to_owned() };
        let insisted = self.asker.insist(&self.system(), |mut admin| {
            let request = request.clone();
            async move { admin.create_log(request).await.map(|answer| answer.into_inner().log) }
        });
        match insisted.answer {
            Ok(Some(log)) => Ok(Shown::new(log)),
            Ok(None) => self.get(name),
            Err(failure) if failure.kind() == ErrorKind::AlreadyExists && insisted.lost => {
                ui.say(&format!("{name} exists: the answer to an earlier request of this command was lost"));
                let log = self.get(name)?;
                if log.known {
                    return Ok(log);
                }
                let what = format!(
                    "{name} was created, and its group {} has no leader that opens it yet",
                    log.group
                );
                Err(Failure::new(ErrorKind::Unavailable, what))
            }
            Err(failure) => Err(unknown(failure, insisted.lost)),
        }
    }

    /// Deletes the log of this name and id. If the answer to an earlier request was lost, a log that does not exist counts as deleted.
    fn delete(&self, name: &str, log_id: &str, ui: &Ui) -> Result<()> {
        let insisted = self.asker.insist(&self.system(), |mut admin| {
            let request = DeleteLogRequest { name: name.to_owned(), log_id: log_id.to_owned() };
            async move { admin.delete_log(request).await.map(drop) }
        });
        match insisted.answer {
            Err(failure) if failure.kind() == ErrorKind::NotFound && insisted.lost => {
                ui.say(&format!("{name} is gone: the answer to an earlier request of this command was lost"));
                Ok(())
            }
            answer => answer.map_err(|failure| unknown(failure, insisted.lost)),
        }
    }

    /// Seals a log. The leader of its group does that.
    fn seal(&self, name: &str) -> Result<()> {
        let log_id = self.get(name)?.log_id;
        let insisted = self.asker.insist(&self.servers.with_log(name), |mut admin| {
            let request = SealLogRequest { name: name.to_owned(), log_id: log_id.clone() };
            async move { admin.seal_log(request).await.map(drop) }
        });
        insisted.answer.map_err(|failure| unknown(failure, insisted.lost))
    }

    /// One log.
    ///
    /// # Errors
    /// `NotFound`.
    fn get(&self, name: &str) -> Result<Shown> {
        // The name itself is the first of all that begin with it.
        let listed = self.asker.insist(&self.system(), |mut admin| {
            let request = ListLogsRequest { prefix: name.to_owned(), after: String::new(), limit: 1 };
            async move { admin.list_logs(request).await.map(|answer| answer.into_inner().logs) }
        });
        let found = listed.answer?.into_iter().next().filter(|log| log.name == name);
        found.map(Shown::new).ok_or_else(|| {
            let what = format!("there is no log {name}; `chiplog logs list` shows those there are");
            Failure::new(ErrorKind::NotFound, what)
        })
    }

    /// All logs whose names begin with `prefix`. With `stale`: as the first server that answers knows them.
    pub(super) fn list(&self, prefix: &str, stale: bool) -> Result<Vec<Shown>> {
        if !stale {
            let (leader, _) = self.asker.leader(&self.system()).map_err(|failure| match failure.kind() {
                ErrorKind::Unavailable => {
                    failure.with_words("`--stale` lists what an answering server knows")
                }
                _ => failure,
            })?;
            return self.list_at(&leader, prefix);
        }
        let mut failed = None;
        for server in &self.servers.addresses {
            match self.list_at(server, prefix) {
                Ok(logs) => return Ok(logs),
                Err(failure) => failed = Some(failure),
            }
        }
        Err(failed.unwrap_or_else(|| Failure::usage("give HOST:PORT of a server")))
    }

    fn list_at(&self, server: &str, prefix: &str) -> Result<Vec<Shown>> {
        let mut all: Vec<Shown> = Vec::new();
        loop {
            let after = all.last().map_or("", |log| log.name.as_str());
            let (logs, more) = self.page(server, prefix, after, PAGE)?;
            let is_end = !more || logs.is_empty();
            all.extend(logs.into_iter().map(Shown::new));
            if is_end {
                return Ok(all);
            }
        }
    }

    fn page(&self, server: &str, prefix: &str, after: &str, limit: u32) -> Result<(Vec<LogInfo>, bool)> {
        let request = ListLogsRequest { prefix: prefix.to_owned(), after: after.to_owned(), limit };
        self.asker.ask(server, PATIENCE, |mut admin| async move {
            let answer = admin.list_logs(request).await?.into_inner();
            Ok((answer.logs, answer.more))
        })
    }
}

/// The failure of a change, with what is unknown after it.
fn unknown(failure: Failure, lost: bool) -> Failure {
    if !lost {
        return failure;
    }
    failure.with_words("it is unknown whether this was done: run the same command again")
}

/// Does something to each log, up to the first failure.
fn each(names: &[String], mut change: impl FnMut(&str) -> Result<()>) -> Result<()> {
    for (n, name) in names.iter().enumerate() {
        change(name).map_err(|failure| match &names[n + 1..] {
            [] => failure,
            rest => failure.with_words(&format!("not tried: {}", listed(rest))),
        })?;
    }
    Ok(())
}

/// Names in a message.
fn listed<T: AsRef<str>>(names: &[T]) -> String {
    let few: Vec<&str> = names.iter().take(NAMED_MAX).map(AsRef::as_ref).collect();
    match names.len() - few.len() {
        0 => few.join(", "),
        more => format!("{} and {}", few.join(", "), format::many(more as u64, "other log", "other logs")),
    }
}

/// Asks before logs are deleted.
///
/// # Errors
/// `InvalidArgument`: the user did not consent.
fn check_consent(logs: &[Shown], ui: &Ui) -> Result<()> {
    let contents: Vec<_> = logs.iter().map(Shown::contents).collect();
    let what = format!("all records of {} would be deleted, for good", listed(&contents));
    match ui.agrees(&what) {
        true => Ok(()),
        false => Err(Failure::usage(format!("{what}; nothing was changed: pass --yes to allow it"))),
    }
}

pub(crate) fn run(args: &LogsCommand, ui: &Ui) -> Result<Exit> {
    let env = env::var(SERVERS).ok();
    let parts = |of: &Of| {
        let (servers, names) = of.parts(env.as_deref())?;
        Ok::<_, Failure>((Cluster::new(servers, &of.connect, ui)?, names))
    };
    match &args.action {
        Action::Create { of, beside } => {
            let (cluster, names) = parts(of)?;
            each(&names, |name| {
                let made = cluster.create(name, beside.as_deref().unwrap_or_default(), ui)?;
                ui.result(&made, |made| format!("created {} in group {}", made.name, made.group))
            })?;
        }
        Action::List { servers, prefix, stale, connect } => {
            let logs = Cluster::new(servers.clone(), connect, ui)?.list(prefix, *stale)?;
            if ui.json {
                logs.iter().try_for_each(|log| ui.json(log))?;
            } else {
                // The result is shown even with --quiet.
                Ui { quiet: false, ..*ui }.result(&logs, |logs| match logs.is_empty() {
                    true => "no named logs".into(),
                    false => table(logs),
                })?;
            }
        }
        Action::Delete { of, yes } => {
            let (cluster, names) = parts(of)?;
            let mut seen = Vec::new();
            if !yes {
                seen = names.iter().map(|name| cluster.get(name)).collect::<Result<_>>()?;
                check_consent(&seen, ui)?;
            }
            // The logs that the user has seen are deleted, not one that gets such a name meanwhile.
            let mut seen = seen.into_iter();
            each(&names, |name| {
                let log = seen.next().map_or_else(|| cluster.get(name), Ok)?;
                cluster.delete(name, &log.log_id, ui)?;
                ui.result(&json!({ "name": name, "deleted": true }), |_| format!("deleted {name}"))
            })?;
        }
        Action::AppendTogether(together) => {
            let (given, appends) = together.parts(env.as_deref())?;
            return together.run(&servers(&given).map_err(Failure::usage)?, &appends, ui);
        }
        Action::Seal { of } => {
            let (cluster, names) = parts(of)?;
            each(&names, |name| {
                cluster.seal(name)?;
                ui.result(&json!({ "name": name, "sealed": true }), |_| format!("sealed {name}"))
            })?;
        }
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        logs: LogsCommand,
    }

    /// The servers and names of `logs create`. `env`: as in the environment.
    fn created(args: &[&str], env: Option<&str>) -> Result<(String, Vec<String>), String> {
        let line = Line::try_parse_from([&["logs", "create"], args].concat()).map_err(|e| e.to_string())?;
        let Action::Create { of, .. } = line.logs.action else { unreachable!("it is create") };
        let (servers, names) = of.parts(env).map_err(|e| e.to_string())?;
        Ok((servers.to_string(), names))
    }

    #[test]
    fn servers_are_told_from_names() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let env = Some("c:3");
        for (args, env, expected) in [
            (&["a:1", "orders"][..], None, ("a:1", names(&["orders"]))),
            (&["a:1,b:2", "x", "y/3"], env, ("a:1,b:2", names(&["x", "y/3"]))),
            (&["x", "y"], env, ("c:3", names(&["x", "y"]))),
        ] {
            assert_eq!(created(args, env), Ok((expected.0.to_owned(), expected.1)), "{args:?}");
        }
        for (args, env, words) in [
            (&["x", "y"][..], None, "x is not a server"),
            (&["./logs", "y"], None, "named logs of a directory"),
            (&["./logs", "y"], env, "named logs of a directory"),
            (&["a:1/orders", "y"], None, "come after the servers"),
            (&["a:1", "b:2"], None, "is not the name of a log"),
            (
                &["a:1", "x y"],
                None,
                "is not the name of a log, which is 1 to 249 of the characters A-Z a-z 0-9 . _ -",
            ),
            (&["x"], None, "give HOST:PORT"),
        ] {
            let error = created(args, env).unwrap_err();
            assert!(error.contains(words), "{args:?}: {error}");
        }
    }

    #[test]
    fn failure_names_what_was_not_tried() {
        let names: Vec<String> = (1..=8).map(|n| format!("log-{n}")).collect();
        let mut tried = Vec::new();
        let failed = each(&names, |name| {
            tried.push(name.to_owned());
            if name == "log-2" { Err(Failure::usage("it exists")) } else { Ok(()) }
        });
        let text = failed.unwrap_err().to_string();
        assert_eq!(text, "it exists; not tried: log-3, log-4, log-5, log-6, log-7 and 1 other log");
        assert_eq!(tried, ["log-1", "log-2"]);
    }

    #[test]
    fn logs_are_shown_in_a_table() {
        let log = |name: &str, first, last, millis: u64, sealed| {
            let timestamp_nanos = millis * 1_000_000;
            let bytes_appended = 2048;
            let group = 2;
            Shown::new(LogInfo {
                name: name.into(),
                group,
                first,
                last,
                bytes_appended,
                timestamp_nanos,
                sealed,
                ..LogInfo::default()
            })
        };
        let logs = [log("orders", 3, 12, 86_400_000, true), log("users", 1, 0, 0, false)];
        assert_eq!(logs.each_ref().map(|log| log.records), [10, 0]);
        let unknown =
            Shown::new(LogInfo { name: "far".into(), group: 3, elsewhere: true, ..LogInfo::default() });
        assert_eq!(unknown.row()[1..6], ["?", "?", "?", "3", "?"]);
        for column in COLUMNS {
            let is_explained = |line: &str| line.get(2..14).is_some_and(|head| head.contains(column));
            assert!(LIST_EXAMPLES.lines().any(is_explained), "{column} has no line in the help");
        }
        let text = table(&logs);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["orders", "3", "12", "2.0", "KiB", "2", "1970-01-02T00:00:00.000Z", "yes"]);
        assert_eq!(lines[2], ["users", "1", "0", "2.0", "KiB", "2", "-", "no"]);
    }
}
