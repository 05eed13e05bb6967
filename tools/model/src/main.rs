//! A model of introductions, membership and removal, with crashes and durability, checked exhaustively within bounds.
//!
//! The model abstracts `core/src/replica/`: terms, votes, a log of changes of membership, commits, what is durable, what a
//! replica that starts again has to hear. ARCHITECTURE.md, "The model of membership", says which rule stands for which
//! function, and what is left out. The rules are switches, so that those of before a mend can be checked as well.

mod calm;
mod checks;
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

/// Checks every state that a small cluster can come to: one leader a term, committed entries that stay, a leader that
/// remains possible, replicas that come back.
///
/// Exit codes: 0 all properties hold in every state within the bounds; 1 one does not, its story is printed; 2 the command
/// line is wrong, or the bounds are too small for what has to be reached.
#[derive(Debug, Parser)]
#[command(name = "chiplog-model", version, after_help = AFTER_HELP)]
struct Args {
    /// Sizes that are checked one after the other, in place of the bounds below: 3, 4, 5; `all` for all of them
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
    /// The last term in which a node may stand for election
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=8))]
    terms: u8,
    /// Changes of membership
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=4))]
    changes: u8,
    /// Which changes
    #[arg(long, value_delimiter = ',', default_value = "remove,promote")]
    kinds: Vec<Kind>,
    /// Nodes that stop or lose power; they can start again
    #[arg(long, default_value_t = 1)]
    crashes: u8,
    /// Messages that are held back and arrive at any later time, any number of times
    #[arg(long, default_value_t = 0)]
    late: u8,
    /// Disks that are set back to an earlier state: the safety of the log is checked alone then
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    set_backs: u8,
    /// Set back the disks of replicas that have led since as well: the log promises nothing for these
    #[arg(long)]
    leaders_set_back: bool,
    /// Set back disks while a deposed leader still leads as well
    #[arg(long)]
    set_back_beside: bool,
    /// A rule that is switched off, as the log was before it; can be given several times
    #[arg(long, value_name = "RULE")]
    without: Vec<Old>,
    /// Threads; all processors if it is not given
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
