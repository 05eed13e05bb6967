//! Searches among few objects, of which any cannot be read.
//!
//! Must not know: a cluster.

use crate::error::{Error, ErrorKind};
use crate::store::read::opening_search::{Found, last_before};
use crate::testing::sim::oracle::Check;

const COUNT_MAX: usize = 7;

/// Whichever objects cannot be read: each record of another one is found, and the error of a record that one of them can have names it.
pub(super) fn unreadable_object_hides_no_other() -> Check {
    for count in 0..=COUNT_MAX {
        for lost in 0..1_u32 << count {
            for holders in 0..=count {
                check(count, lost, holders)?;
            }
        }
    }
    Ok(())
}

/// The first `holders` objects begin before the record, so it is in the last of these.
fn check(count: usize, lost: u32, holders: usize) -> Check {
    let is_lost = |at: usize| lost & (1 << at) != 0;
    let begins_before = |at: usize| match is_lost(at) {
        true => Err(Error::new(ErrorKind::Corrupt, format!("object {at} is lost"))),
        false => Ok(at < holders),
    };
    let failed = |what: &str| {
        Err(format!("{count} objects, {lost:b} lost, {holders} begin before the record: {what}"))
    };
    let Ok(Found { at, unreadable, .. }) = last_before(count, begins_before) else {
        return failed("nothing is found");
    };
    if at != (0..holders).rev().find(|at| !is_lost(*at)) {
        return failed(&format!("{at:?} is found"));
    }
    let said = unreadable.map(|error| error.to_string()).unwrap_or_default();
    let behind = at.map_or(0, |at| at + 1);
    let can_have_it = |other: usize| other >= behind && (behind..=other).all(is_lost);
    for other in (0..count).filter(|other| is_lost(*other)) {
        if said.contains(&format!("object {other} ")) != can_have_it(other) {
            return failed(&format!("of object {other} this is said: {said:?}"));
        }
    }
    Ok(())
}
