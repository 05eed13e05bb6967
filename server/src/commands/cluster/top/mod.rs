//! `chiplog top`: a cluster at work, once a second.
//!
//! A rate is the growth of a counter between two rounds of queries. The counters of the round before are kept
//! here; the servers are only read.

mod figures;
mod screen;

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
use chiplog::Timestamp;
use chiplog_net::wire::proto::v1::StatusResponse;
use clap::Args;
use figures::{Figures, Replica};
use screen::Screen;
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

    /// End after N views.
    #[arg(long, value_name = "N", value_parser = whole_number::<u64>("a number of views", 1..=u64::MAX))]
    count: Option<u64>,

    #[command(flatten)]
    connect: Connect,
}

const INTERVAL: Duration = Duration::from_secs(1);
/// How long a server may take to answer before it is shown as unreachable.
const PATIENCE: Duration = Duration::from_millis(900);

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
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
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
            time: format::time(Timestamp(timestamp)),
            timestamp,
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

    fn draw(&mut self, figures: &Figures, ui: &Ui) -> Result<()> {
        match self {
            Self::Json => ui.json(figures),
            Self::Pages { drawn } => {
                let between = if std::mem::replace(drawn, true) { "\n" } else { "" };
                print(format!("{between}{}", figures.words()).as_bytes())
            }
            Self::Screen { screen, last } => {
                *last = figures.narrow_words(screen.width());
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
    let asker = Asker::new(&args.connect, ui)?;
    let mut query = ClusterQuery::new(asker.dialler().clone(), &Servers::joined(&args.servers)?);
    // Query once before taking the terminal: an error has to be visible on the normal screen.
    let mut began = Instant::now();
    let mut now = asker.wait(query.round(PATIENCE)).somebody()?;
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
    let mut before: Option<(Found, Instant)> = None;
    for n in 1.. {
        let passed = before.as_ref().map_or(Duration::ZERO, |(_, at)| began.duration_since(*at));
        let figures = Rounds { before: before.as_ref().map(|(found, _)| found), now: &now, passed }.figures();
        output.draw(&figures, ui)?;
        if args.count == Some(n) || stopped.recv_timeout(INTERVAL.saturating_sub(began.elapsed())).is_ok() {
            break;
        }
        before = Some((now, began));
        began = Instant::now();
        now = asker.wait(query.round(PATIENCE));
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
