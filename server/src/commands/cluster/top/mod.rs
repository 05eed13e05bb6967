//! `chiplog top`: a cluster at work, once a second.
//!
//! A rate is the growth of a counter between two rounds of queries. The counters of the round before are kept
//! here; the servers are only read.

mod busiest;
mod figures;
mod screen;

use crate::commands::cluster::logs::Cluster;
use crate::common::exit::Exit;
use crate::common::failure::Result;
use crate::common::format;
use crate::common::number::whole_number;
use crate::common::output::{Ui, print};
use crate::common::signals;
use crate::connect::cluster::{Asker, Connect};
use crate::connect::cluster_status::{ClusterQuery, Found, role_name};
use crate::connect::groups::groups;
use crate::connect::target::Servers;
use busiest::Lists;
use chiplog::Timestamp;
use chiplog_net::wire::proto::v1::StatusResponse;
use clap::Args;
use figures::{Figures, Replica};
use screen::Screen;
use serde::Serialize;
use std::io::IsTerminal;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const HELP: &str = "\
Examples:
  chiplog top log1:7411
      Until q or Ctrl-C.
  chiplog top log1:7411 --json --count 60 > minute.jsonl
      A minute for a script, one object per second.
  chiplog top log1:7411 --json | jq -c '[.leader, .records_per_second, [.replicas[].lag]]'

  chiplog top log1:7411 --logs
      The named logs that are appended to most.
  chiplog top log1:7411 --logs --json --count 2 | jq -r '.logs[] | [.name, .bytes_per_second] | @tsv'

Columns:
  RECORDS/S  records committed, as far as the replica knows
  WRITTEN/S  bytes of blocks that the replica wrote, headers included
  SYNC       median and 99th percentile of all syncs since the server was started
  records/s and appends/s in the first line: of the default log; appends are batches that its leader
  accepted

JSON fields, one object per line:
  time, timestamp (the same in ms since 1970), log_id, leader (its node; null: none),
  appends_per_second, records_per_second, named_logs (their number; null: the servers keep none),
  replicas, for each:
    node, role (as in `chiplog status`), voter, client, zone, term, first, last, lag,
    records_per_second, written_bytes_per_second, bytes_used, bytes_capacity, disk_bytes,
    disk_free_bytes, sync_median_micros, sync_p99_micros, damaged, repaired, poison, error
  with --logs: time, timestamp, named_logs (their number), bytes_per_second, records_per_second, active
  (how many were appended to since the line before), logs, for each:
    name, group, bytes_per_second, records_per_second, first, last, bytes_appended, known (false: the
    leader of its group does not answer; then its figures are unknown, and shown as ?); error (why there is
    no list; null: there is one)
  Unknown values are null, as are all rates on the first line.";

/// Watch a cluster at work: replicas, rates, lag, syncs and disks, once a second.
///
/// One server that answers is enough: it names the others, and the command asks them as well.
///
/// On a terminal each round replaces the one before, and the last one stays; a narrow terminal gets fewer
/// columns. Elsewhere the views follow each other. q or Ctrl-C ends the command (status 0). Status 5: no
/// server answered the first query.
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct Top {
    /// Servers, by their address for clients. One that runs is enough; A,B,C are tried in turn. With /LOG after the
    /// servers: the replicas of the group that holds this named log.
    #[arg(value_name = "HOST:PORT[/LOG]", env = "CHIPLOG_SERVERS", required = true)]
    servers: Vec<Servers>,

    /// Show the named logs that are appended to most, instead of replicas: as the first server that answers knows
    /// them. The first view shows those to which most was ever appended.
    #[arg(long)]
    logs: bool,

    /// With --logs: show at most N logs.
    #[arg(long, value_name = "N", default_value = "20", requires = "logs", value_parser = whole_number::<usize>("a number of logs", 1..=1 << 20))]
    rows: usize,

    /// End after N views.
    #[arg(long, value_name = "N", value_parser = whole_number::<u64>("a number of views", 1..=u64::MAX))]
    count: Option<u64>,

    #[command(flatten)]
    connect: Connect,
}

const INTERVAL: Duration = Duration::from_secs(1);
/// How long a server may take to answer before it is shown as unreachable.
const PATIENCE: Duration = Duration::from_millis(900);

/// A view of one moment.
trait View: Serialize {
    /// All of it as text.
    fn words(&self) -> String;
    /// The same in lines of at most `width` characters.
    fn narrow_words(&self, width: usize) -> String;
}

fn now() -> Timestamp {
    Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64)
}

/// Rounds of questions to the replicas.
struct Replicas<'a> {
    asker: &'a Asker,
    query: ClusterQuery,
    /// The answers of the round before, and when it began.
    before: Option<(Found, Instant)>,
}

impl Replicas<'_> {
    /// # Errors
    /// In the first round: no server answers.
    fn next(&mut self) -> Result<Figures> {
        let began = Instant::now();
        let now = self.asker.wait(self.query.round(PATIENCE));
        let now = if self.before.is_none() { now.somebody()? } else { now };
        let passed = self.before.as_ref().map_or(Duration::ZERO, |(_, at)| began.duration_since(*at));
        let before = self.before.as_ref().map(|(found, _)| found);
        let figures = Rounds { before, now: &now, passed }.figures();
        self.before = Some((now, began));
        Ok(figures)
    }
}

/// Two rounds of answers, and the time between them.
struct Rounds<'a> {
    before: Option<&'a Found>,
    now: &'a Found,
    passed: Duration,
}

impl Rounds<'_> {
    /// The answer of a replica in the round before, if it is the same replica and has not been restarted
    /// since.
    fn before(&self, now: &StatusResponse) -> Option<&StatusResponse> {
        let same = |s: &&StatusResponse| {
            s.node == now.node && s.directory == now.directory && s.written_bytes <= now.written_bytes
        };
        self.before?.answers.iter().map(|(_, s)| s).find(same)
    }

    /// The growth per second of a replica's counter.
    fn rate(&self, now: &StatusResponse, figure: impl Fn(&StatusResponse) -> u64) -> Option<f64> {
        let grown = figure(now).checked_sub(figure(self.before(now)?))?;
        Some(format::rate(grown, self.passed))
    }

    fn figures(&self) -> Figures {
        let now = now();
        let leader = self.now.leader();
        let last = |found: &Found| found.answers.iter().map(|(_, s)| s.last).max();
        let grown = self.before.and_then(|before| last(self.now)?.checked_sub(last(before)?));
        let answered = self.now.answers.iter().map(|(server, status)| self.replica(server, status));
        let silent = self.now.silent.iter().map(|silent| Replica {
            node: silent.member.as_ref().map(|m| m.node),
            role: "unreachable",
            voter: silent.member.as_ref().is_some_and(|m| m.voter),
            client: silent.server.clone(),
            zone: silent.member.as_ref().map_or_else(String::new, |m| m.zone.clone()),
            lag: silent.member.as_ref().and_then(|m| self.now.lag(m.node)),
            error: Some(silent.why.clone()),
            ..Replica::default()
        });
        let others = self.now.others.iter().map(|(server, status)| Replica {
            lag: None,
            error: Some(self.now.strangeness(server, status)),
            ..self.replica(server, status)
        });
        let mut replicas: Vec<Replica> = answered.chain(others).chain(silent).collect();
        replicas.sort_by_key(|r| r.node.unwrap_or(u64::MAX));
        let groups = groups(self.now);
        Figures {
            time: format::time(now),
            timestamp: now.get(),
            log_id: self.now.log_id(),
            leader: leader.map(|l| l.node),
            appends_per_second: leader.and_then(|l| self.rate(l, |s| s.appends)),
            records_per_second: grown.map(|grown| format::rate(grown, self.passed)),
            named_logs: (!groups.is_empty()).then(|| groups.iter().map(|group| group.logs).sum()),
            replicas,
        }
    }

    fn replica(&self, server: &str, s: &StatusResponse) -> Replica {
        let known = |n: u64| (n > 0).then_some(n);
        Replica {
            node: known(s.node),
            role: role_name(s),
            voter: self.now.seat_of(s).is_some_and(|m| m.voter),
            client: server.to_owned(),
            zone: s.zone.clone(),
            term: Some(s.term),
            first: Some(s.first),
            last: Some(s.last),
            lag: self.now.lag(s.node),
            records_per_second: self.rate(s, |s| s.last),
            written_bytes_per_second: self.rate(s, |s| s.written_bytes),
            bytes_used: Some(s.bytes_used),
            bytes_capacity: known(s.capacity),
            disk_bytes: known(s.disk_bytes),
            disk_free_bytes: (s.disk_bytes > 0).then_some(s.disk_free_bytes),
            sync_median_micros: Some(s.sync_median_micros),
            sync_p99_micros: Some(s.sync_p99_micros),
            damaged: Some(s.damaged),
            repaired: Some(s.repaired),
            poison: Some(s.poison.clone()).filter(|p| !p.is_empty()),
            error: None,
        }
    }
}

/// The destination of the views.
enum Output {
    Json,
    /// Rounds follow each other.
    Pages {
        drawn: bool,
    },
    /// Each round replaces the one before; the last one stays.
    Screen {
        screen: Screen,
        last: String,
    },
}

impl Output {
    fn new(ui: &Ui) -> Result<Self> {
        if ui.json {
            return Ok(Self::Json);
        }
        if !std::io::stdout().is_terminal() {
            return Ok(Self::Pages { drawn: false });
        }
        Ok(Self::Screen { screen: Screen::take()?, last: String::new() })
    }

    fn draw(&mut self, view: &impl View, ui: &Ui) -> Result<()> {
        match self {
            Self::Json => ui.json(view),
            Self::Pages { drawn } => {
                let between = if std::mem::replace(drawn, true) { "\n" } else { "" };
                print(format!("{between}{}", view.words()).as_bytes())
            }
            Self::Screen { screen, last } => {
                *last = view.narrow_words(screen.width());
                screen.draw(&format!("{last}\nq ends"))
            }
        }
    }

    /// Ends the output in order: leaves the screen and prints the last figures.
    fn end(self) -> Result<()> {
        if let Self::Screen { screen, last } = &self {
            screen.leave();
            print(last.as_bytes())?;
        }
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Self::Screen { screen, .. } = self {
            screen.leave();
        }
    }
}

pub(crate) fn run(args: &Top, ui: &Ui) -> Result<Exit> {
    let servers = Servers::joined(&args.servers)?;
    if args.logs {
        servers.unnamed("--logs shows all named logs")?;
        let mut lists = Lists::new(Cluster::new(servers, &args.connect, ui)?, args.rows);
        return watch(args.count, ui, || lists.next());
    }
    let asker = Asker::new(&args.connect, ui)?;
    let query = ClusterQuery::new(asker.dialler().clone(), &servers);
    let mut replicas = Replicas { asker: &asker, query, before: None };
    watch(args.count, ui, || replicas.next())
}

/// Shows one view after the other.
fn watch<V: View>(count: Option<u64>, ui: &Ui, mut next: impl FnMut() -> Result<V>) -> Result<Exit> {
    // The first one comes before the terminal is taken: an error has to be visible on the normal screen.
    let mut began = Instant::now();
    let mut view = next()?;
    let mut output = Output::new(ui)?;
    let (stop, stopped) = mpsc::channel();
    let screen = match &output {
        Output::Screen { screen, .. } => Some(screen.clone()),
        Output::Json | Output::Pages { .. } => None,
    };
    if let Some(screen) = &screen {
        let stop = stop.clone();
        screen.on_q(move || _ = stop.send(()));
    }
    signals::on_stop(move || {
        // Leave at once: a second signal ends the process.
        screen.iter().for_each(Screen::leave);
        let _ = stop.send(());
    })?;
    for n in 1.. {
        output.draw(&view, ui)?;
        if count == Some(n) || stopped.recv_timeout(INTERVAL.saturating_sub(began.elapsed())).is_ok() {
            break;
        }
        began = Instant::now();
        view = next()?;
    }
    output.end()?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(written_bytes: u64, last: u64) -> Found {
        let status = StatusResponse { node: 1, written_bytes, last, ..StatusResponse::default() };
        Found { answers: vec![("a:1".into(), status)], ..Found::default() }
    }

    #[test]
    fn rates_are_growth_and_a_restarted_server_has_none() {
        let (first, second) = (round(1000, 10), round(5000, 30));
        let rates = |before: &Found, now: &Found| {
            let figures = Rounds { before: Some(before), now, passed: Duration::from_secs(2) }.figures();
            (figures.records_per_second, figures.replicas[0].written_bytes_per_second)
        };
        assert_eq!(rates(&first, &second), (Some(10.0), Some(2000.0)));
        assert_eq!(rates(&second, &round(10, 31)), (Some(0.5), None));
        let figures = Rounds { before: None, now: &first, passed: Duration::ZERO }.figures();
        assert_eq!((figures.records_per_second, figures.replicas[0].records_per_second), (None, None));
    }
}
