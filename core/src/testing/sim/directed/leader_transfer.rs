//! Leaders whose disks fill up while the others have room.

use super::{Check, ELECTION_TIMEOUT, LARGE, OWN, Request, Stage};
use crate::error::ErrorKind;

/// The positions in its files at which a leader's disk fills up.
const ROUNDS: u64 = 12;
/// More appends than two files hold.
const APPENDS_MAX: u64 = 2_000;

/// Leadership goes to another replica, whatever the leader refuses: large records, small ones, or new sessions. With small ones the others
/// are near the end of a file, and have taken the next one already, for a commit record that was not needed.
pub(super) fn leadership_leaves_a_full_disk() -> Check {
    let mut stage = Stage::new(3, 0)?;
    for round in 0..ROUNDS {
        let full = stage.leader()?;
        let host = stage.world.hosts.get_mut(&full).ok_or("the leader has no host")?;
        host.disk.limit_space(Some(host.disk.space_used()));
        let mut is_refused = false;
        for _ in 0..APPENDS_MAX {
            let request = match round % 3 {
                0 => Request::Append(OWN, stage.batch(LARGE)?),
                1 => Request::Append(OWN, stage.batch(0)?),
                _ => Request::OpenSession(OWN),
            };
            match stage.submit(full, request)? {
                None => {}
                Some(ErrorKind::Full) => is_refused = true,
                Some(_) if stage.world.leader() != Some(full) => {}
                Some(error) => return Err(format!("round {round}: a full disk is reported as {error:?}")),
            }
            if is_refused {
                stage.advance(ELECTION_TIMEOUT / 2)?;
            }
            if stage.world.leader().is_some_and(|leader| leader != full) {
                break;
            }
        }
        let leads = stage.world.leader() == Some(full);
        if leads || !is_refused {
            return Err(format!(
                "round {round}: node {full} has a full disk and leads: {leads}; it refused something: {is_refused}"
            ));
        }
        stage.takes_appends().map_err(|why| format!("round {round}: {why}"))?;
        let host = stage.world.hosts.get_mut(&full).ok_or("the old leader has no host")?;
        host.disk.limit_space(None);
        stage.until("all are settled", |w| w.is_settled().is_some())?;
    }
    Ok(())
}
