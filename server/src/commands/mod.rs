//! The commands, one file each, in folders by purpose.
//!
//! A command is a struct of arguments, whose documentation is its help, and a function `run`. `run` takes the
//! arguments and the [`Ui`] and returns the exit code.

pub(crate) mod cli;
pub(crate) mod cluster;
pub(crate) mod data;
pub(crate) mod files;
pub(crate) mod meta;
pub(crate) mod run;

use crate::common::exit::Exit;
use crate::common::failure::Result;
use crate::common::output::Ui;
use clap::Subcommand;
use cluster::{cost, logs, member, options, status, top};
use data::{append, discard, read};
use files::{backup, dump, info, restore, tier, verify};
use meta::{completions, config, man, token};
use run::{bench, dev, doctor, follow, serve};

/// The command to run.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Append(append::Append),
    Read(read::Read),
    Info(info::Info),
    Discard(discard::Discard),
    Verify(verify::Verify),
    Dump(dump::Dump),
    Doctor(doctor::Doctor),
    Bench(Box<bench::Bench>),
    Serve(Box<serve::Serve>),
    Dev(dev::Dev),
    Follow(Box<follow::Follow>),
    Backup(Box<backup::BackUp>),
    Restore(restore::Restore),
    Tier(Box<tier::TierCommand>),
    Status(status::Status),
    Top(top::Top),
    Cost(Box<cost::Cost>),
    Logs(Box<logs::LogsCommand>),
    Member(Box<member::MemberCommand>),
    TransferLeader(Box<member::TransferLeader>),
    Options(Box<options::Options>),
    Config(config::ConfigCommand),
    Token(token::Token),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Command {
    /// Whether the command runs until a signal ends it, so that its messages form a log.
    pub(crate) fn is_service(&self) -> bool {
        matches!(self, Self::Serve(_) | Self::Follow(_))
    }
}

/// Runs a command. `whole` builds the complete command line that the command is a part of.
pub(crate) fn run(command: Command, whole: fn() -> clap::Command, ui: &Ui) -> Result<Exit> {
    match command {
        Command::Append(args) => append::run(&args, ui),
        Command::Read(args) => read::run(&args, ui),
        Command::Info(args) => info::run(&args, ui),
        Command::Discard(args) => discard::run(&args, ui),
        Command::Verify(args) => verify::run(&args, ui),
        Command::Dump(args) => dump::run(&args, ui),
        Command::Doctor(args) => doctor::run(&args, ui),
        Command::Bench(args) => bench::run(&args, ui),
        Command::Serve(args) => serve::run(&args, whole, ui),
        Command::Dev(args) => dev::run(&args, ui),
        Command::Follow(args) => follow::run(&args, ui),
        Command::Backup(args) => backup::run(&args, ui),
        Command::Restore(args) => restore::run(&args, ui),
        Command::Tier(args) => tier::run(&args, ui),
        Command::Status(args) => status::run(&args, ui),
        Command::Top(args) => top::run(&args, ui),
        Command::Cost(args) => cost::run(&args, ui),
        Command::Logs(args) => logs::run(&args, ui),
        Command::Member(args) => member::run(&args, ui),
        Command::TransferLeader(args) => member::transfer(&args, ui),
        Command::Options(args) => options::run(&args, ui),
        Command::Config(args) => config::run(&args, ui),
        Command::Token(args) => token::run(&args, ui),
        Command::Completions(args) => completions::run(&args, whole(), ui),
        Command::Man(args) => man::run(&args, whole(), ui),
    }
}
