//! Long tests of real servers, each a command: `attacks` measures what clients get beside each attack, `soak` runs a
//! cluster under load and faults. Built beside `chiplog`, whose servers they start.
//!
//! ```text
//! attacks.rs      each attack beside well-behaved clients, and these alone
//!   attackers.rs  malicious clients, in a process of their own
//!   others.rs     well-behaved clients, and how long their calls take
//! soak.rs         load, faults, samples, the result
//!   soak/judge.rs    acknowledgements compared with what is read
//!   soak/clients.rs  programs that append and read
//!   soak/faults.rs   kill -9, SIGSTOP, changes of the leader
//!   soak/objects.rs  the object store, and the loss of all servers
//!   soak/samples.rs  memory and descriptors over time
//! servers.rs      `chiplog serve` as processes
//! report.rs       tables and JSON
//! ```
//!
//! Modules use only those below them.

mod attackers;
mod attacks;
mod others;
mod report;
mod servers;
mod soak;

use attackers::Attack;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Long tests of real servers.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure what well-behaved clients get beside each attack, compared with what they get alone
    Attacks(attacks::Options),
    /// Run three servers under load and faults; nothing may be lost, and memory and descriptors must stay flat
    Soak(soak::Options),
    /// Become another program, which ends with the calling one
    #[command(hide = true)]
    Bound {
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
    /// Attack a server until killed
    #[command(hide = true)]
    Attacker {
        attack: Attack,
        address: String,
        /// A token that may append
        token: String,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Attacks(options) => attacks::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Bound { command } => servers::become_bound(&command).map(|()| true),
        Command::Attacker { attack, address, token } => {
            attackers::run(attack, &address, &token).map(|()| true)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chiplog-load: {error:#}");
            ExitCode::from(2)
        }
    }
}
