//! A model of introductions, membership and removal, with crashes and durability, checked exhaustively within bounds.
//!
//! The model abstracts `core/src/replica/`: terms, votes, a log of changes of membership, commits, synced and unsynced writes,
//! and the answers that a restarted replica waits for. `docs/internals/membership-model.md` lists the
//! function behind each rule, and what is left out. Each rule can be switched off, to see which failure it prevents.

mod calm;
mod checks;
mod merge;
mod protocol;
mod rules;
mod run;
mod state;
mod story;
mod symmetry;
#[cfg(test)]
mod tests;

use clap::Parser;
use rules::{Bounds, Kind, Old, Rules};
use std::process::ExitCode;

/// Checks every state that a small cluster can reach: each term has one leader, committed entries stay, a leader
/// remains possible, and replicas return after a restart.
///
/// Exit codes: 0 all properties hold in every state within the bounds; 1 one does not, its story is printed; 2 the
/// command line is wrong, or the bounds are too small for the events that must be reached.
#[derive(Debug, Parser)]
#[command(name = "chiplog-model", version, after_help = AFTER_HELP)]
struct Args {
    /// Sizes that are checked one after the other, instead of the bounds below: 3, 4, 5; `all` for all of them
    #[arg(long, value_name = "NODES", conflicts_with_all = ["voters", "learners", "fresh"])]
    size: Option<String>,
    /// Voters at the start; node 1 leads them
    #[arg(long, default_value_t = 3)]
    voters: usize,
    /// Learners at the start
    #[arg(long, default_value_t = 0)]
    learners: usize,
    /// Nodes that are no members at the start
    #[arg(long, default_value_t = 0)]
    fresh: usize,
    /// The last term in which a node may start an election
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=8))]
    terms: u8,
    /// Changes of membership
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=4))]
    changes: u8,
    /// The kinds of changes
    #[arg(long, value_delimiter = ',', default_value = "remove,promote")]
    kinds: Vec<Kind>,
    /// Crashes: a node stops or loses power, keeps its synced writes and the first few writes after them, and can start
    /// again
    #[arg(long, default_value_t = 1)]
    crashes: u8,
    /// Messages that are delayed: each can arrive at any later time, and more than once
    #[arg(long, default_value_t = 0)]
    late: u8,
    /// Disks that are replaced by an older copy of themselves; only the safety of the log is checked then
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    set_backs: u8,
    /// Also set back disks of replicas that have led since that copy: the log promises nothing for these
    #[arg(long)]
    leaders_set_back: bool,
    /// Also set back disks while a deposed leader still leads: the log promises nothing for these
    #[arg(long)]
    set_back_beside: bool,
    /// Switch off a rule of the log; can be given several times
    #[arg(long, value_name = "RULE")]
    without: Vec<Old>,
    /// Threads; all processors by default
    #[arg(long)]
    threads: Option<usize>,
    /// One line of JSON for each check
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "Examples:
  chiplog-model --size all                                  what `make model` runs
  chiplog-model --voters 2 --without word                   a removal that is answered too early
  chiplog-model --voters 1 --learners 2 --changes 2 --without greetings   a replica that never comes back";

fn main() -> ExitCode {
    let args = Args::parse();
    let all = match bounds(&args) {
        Ok(all) => all,
        Err(what) => {
            eprintln!("{what}");
            return ExitCode::from(2);
        }
    };
    let rules = Rules::without(args.without.iter().copied());
    let threads =
        args.threads.or_else(|| std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1);
    let mut worst = 0;
    for bounds in all {
        let outcome = run::check(rules, &bounds, threads);
        if args.json {
            println!(
                "{}",
                serde_json::to_string(&outcome).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
            );
        } else {
            print!("{}", outcome.text());
        }
        worst = worst.max(outcome.exit_code());
        if outcome.exit_code() == 1 {
            worst = 1;
            break;
        }
    }
    ExitCode::from(worst)
}

fn bounds(args: &Args) -> Result<Vec<Bounds>, String> {
    if let Some(size) = &args.size {
        return run::sized(size);
    }
    let bounds = Bounds {
        voters: args.voters,
        learners: args.learners,
        fresh: args.fresh,
        terms: args.terms,
        changes: args.changes,
        kinds: args.kinds.clone(),
        crashes: args.crashes,
        late: args.late,
        set_backs: args.set_backs,
        leaders_set_back: args.leaders_set_back,
        set_back_beside: args.set_back_beside,
    };
    let nodes = bounds.nodes();
    if bounds.voters == 0 || !(2..=rules::NODES_MAX).contains(&nodes) {
        return Err(format!(
            "{nodes} nodes with {} voters: give 2 to 5 nodes, one of them a voter",
            bounds.voters
        ));
    }
    Ok(vec![bounds])
}
