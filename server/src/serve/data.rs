//! Data: the checks of a server's data directory before anything is written into it.
//!
//! Invariant: a log that a program keeps on its own becomes a replica only if --init or `chiplog member init` says so.

use super::config::Config;
use super::groups::NAMED;
use crate::common::failure::{Failure, Result};
use crate::connect::directory::{check_no_backup, check_no_others, segments};
use chiplog::ReadOnlyLog;
use chiplog::inspect::{Content, Event, Inspector};
use chiplog_net::wire::ids::to_hex;
use chiplog_tier::local_directory;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf, absolute};

/// Checks that a server may write into its data directory.
///
/// # Errors
/// It is a backup, or it has other files and no replica.
pub(super) fn check_data(config: &Config) -> Result<()> {
    let data = &config.data;
    check_no_backup(data)?;
    let instead = format!(
        "give an empty or a new one, which may be below it, such as {}",
        data.join("chiplog").display()
    );
    let store = local_directory(&config.object_store);
    let is_own = |path: &Path| {
        // Such as .snapshot of a file system.
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        is_hidden || path.ends_with(NAMED) || store.as_ref().is_some_and(|store| is_above(path, store))
    };
    check_no_others(data, is_own, &instead)
}

/// Checks that the data directory has no log that a program keeps on its own: a server makes it the first replica of a cluster, and the
/// program can no longer open it. A log that was restored, or is a branch, and that no program has opened since is for a server, too.
///
/// # Errors
/// `InvalidArgument`: it has one.
pub(super) fn check_not_kept_alone(data: &Path) -> Result<()> {
    // The log's own opening reports what is wrong with it.
    let Ok(log) = ReadOnlyLog::open(data) else { return Ok(()) };
    // The restored default log of a cluster with named logs can be one that was made there, because nothing of it was stored.
    let is_of_servers = log.members().is_some() || log.status().follows || data.join(NAMED).is_dir();
    if is_of_servers || !was_opened(data) {
        return Ok(());
    }
    let (dir, id) = (data.display(), to_hex(log.log_id().get()));
    Err(Failure::usage(format!(
        "data is {dir}, which holds log {id}, kept by a program or `chiplog append` on its own: a server would make it the first \
         replica of a new cluster, for good, and the program could no longer open it. Nothing was changed: give --init if that is \
         meant, or --data with the server's own directory, which may be missing"
    )))
}

/// Whether a program has opened a log without a cluster for writing: it then voted for itself. A log that a command made of a backup or of
/// objects ends with a vote for nobody.
fn was_opened(dir: &Path) -> bool {
    let mut numbers = segments(dir);
    numbers.sort_unstable();
    // Prepared files have no block.
    let last_written = numbers.into_iter().rev().find_map(|number| {
        let (mut blocks, mut vote) = (0, None);
        let mut visit = |event: Event<'_>| {
            if let Event::Block(block) = event {
                blocks += 1;
                if let Ok(Content::HardState { vote: voted, .. }) = block.content() {
                    vote = Some(voted);
                }
            }
            ControlFlow::Continue(())
        };
        Inspector::open(dir).ok()?.only(number).walk(&mut visit).ok()?;
        (blocks > 0).then_some(vote)
    });
    last_written.flatten() != Some(0)
}

/// Whether `path` is `below`, or a directory above it.
fn is_above(path: &Path, below: &Path) -> bool {
    let forms = |path: &Path| -> Vec<PathBuf> {
        [absolute(path), path.canonicalize()].into_iter().flatten().collect()
    };
    forms(below).iter().any(|below| forms(path).iter().any(|path| below.starts_with(path)))
}
