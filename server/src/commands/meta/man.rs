//! `chiplog man`: manual pages, made from the same text as `--help`.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::output::{Ui, print};
use clap::Args;
use serde_json::json;
use std::fs;
use std::io;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  chiplog man | man -l -                       read the page of chiplog itself
  chiplog man append | man -l -                read the page of a command
  chiplog man member add | man -l -            or of a subcommand
  chiplog man --out /usr/local/share/man/man1  install all";

/// Print a manual page, or write all of them to a directory.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Man {
    /// The command whose page to print, such as `append` or `member add`. Default: chiplog itself.
    #[arg(conflicts_with = "out", num_args = 0..=2)]
    command: Vec<String>,

    /// Write all pages, chiplog.1, chiplog-append.1, chiplog-member-add.1 …, to this directory. It is created
    /// if missing.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Man, mut root: clap::Command, ui: &Ui) -> Result<Exit> {
    root.build();
    if let Some(dir) = &args.out {
        fs::create_dir_all(dir).map_err(|e| Failure::io("make", dir, &e))?;
        let mut written = Vec::new();
        for command in all(&root) {
            let path = dir.join(format!("{}.1", page_name(command)));
            fs::write(&path, render(command)?).map_err(|e| Failure::io("write", &path, &e))?;
            written.push(path);
        }
        ui.result(&json!({ "written": written }), |_| {
            written.iter().map(|path| format!("{}\n", path.display())).collect()
        })?;
        return Ok(Exit::Ok);
    }
    let command = args.command.iter().try_fold(&root, |command, name| {
        command.find_subcommand(name).ok_or_else(|| {
            let names: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
            let there = if names.is_empty() { "none".into() } else { names.join(", ") };
            Failure::usage(format!("{} has no command {name}; its commands: {there}", command.get_name()))
        })
    })?;
    let page = render(command)?;
    if ui.json {
        ui.json(&json!({ "name": page_name(command), "page": String::from_utf8_lossy(&page) }))?;
    } else {
        print(&page)?;
    }
    Ok(Exit::Ok)
}

/// A command and all its subcommands, except `help`, which has no page.
fn all(command: &clap::Command) -> Vec<&clap::Command> {
    let below = command.get_subcommands().filter(|c| c.get_name() != "help");
    std::iter::once(command).chain(below.flat_map(all)).collect()
}

/// The name of a command's page, such as `chiplog-append`.
fn page_name(command: &clap::Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_string()
}

/// The page: clap's sections, then ours, which are at the end of `--help`.
fn render(command: &clap::Command) -> Result<Vec<u8>> {
    let man = clap_mangen::Man::new(command.clone());
    let mut page = Vec::new();
    let mut sections = || -> io::Result<()> {
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        page.extend_from_slice(synopsis(command).as_bytes());
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        if command.has_subcommands() {
            man.render_subcommands_section(&mut page)?;
        }
        let extra = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        page.extend_from_slice(sections_of(&extra).as_bytes());
        man.render_version_section(&mut page)
    };
    sections().map_err(|e| Failure::output(&e))?;
    Ok(page)
}

/// The usage line of `--help`. The synopsis of the crate lists all options without their values.
fn synopsis(command: &clap::Command) -> String {
    let usage = command.clone().render_usage().to_string();
    sections_of(&format!("Synopsis:\n{}", usage.trim_start_matches("Usage:").trim()))
}

/// Turns `Title:` lines and the indented text below them into sections of plain, unfilled text.
fn sections_of(help: &str) -> String {
    let mut out = String::new();
    let mut plain = false;
    for line in help.lines() {
        match line.strip_suffix(':').filter(|title| !title.starts_with(' ') && !title.is_empty()) {
            Some(title) => {
                out.push_str(if plain { ".fi\n" } else { "" });
                out.push_str(&format!(".SH {}\n.nf\n", title.to_uppercase()));
                plain = true;
            }
            None => {
                // A dot or quote at a line's start would be a request; a plain hyphen would be typeset as a
                // dash.
                let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
                out.push_str(&format!("{guard}{}\n", line.replace('\\', "\\e").replace('-', "\\-")));
            }
        }
    }
    out.push_str(if plain { ".fi\n" } else { "" });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli;

    /// The synopsis showed "[--log]" for an option that takes a value.
    #[test]
    fn synopsis_is_the_usage() {
        let mut root = cli::command();
        root.build();
        let append = synopsis(root.find_subcommand("append").unwrap());
        assert_eq!(append, ".SH SYNOPSIS\n.nf\nchiplog append [OPTIONS] <DIR|HOST:PORT[/LOG]>\n.fi\n");
        assert!(synopsis(&root).contains("chiplog [OPTIONS] <COMMAND>"), "{}", synopsis(&root));
    }

    #[test]
    fn every_command_has_a_page() {
        let mut root = cli::command();
        root.build();
        let names: Vec<String> = all(&root).into_iter().map(page_name).collect();
        for name in
            ["chiplog", "chiplog-append", "chiplog-member", "chiplog-member-add", "chiplog-config-check"]
        {
            assert!(names.iter().any(|have| have == name), "{name} is not in {names:?}");
        }
        assert!(!names.iter().any(|name| name.ends_with("-help")), "{names:?}");
    }

    #[test]
    fn help_sections_become_sections_of_the_page() {
        let page = sections_of("Examples:\n  chiplog a-b '\\n'\n\nExit status:\n    0  fine\n.odd");
        let expected = ".SH EXAMPLES\n.nf\n  chiplog a\\-b '\\en'\n\n.fi\n.SH EXIT STATUS\n.nf\n    0  fine\n\\&.odd\n.fi\n";
        assert_eq!(page, expected);
    }
}
