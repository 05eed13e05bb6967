//! Examination: the jobs of the scrub of objects. A listing looks for all objects; an examination reads one whole, and stores it again
//! if it is not as it was stored.
//!
//! Invariants:
//! - what is put is what the log says of the object, to the last byte; it counts as repaired once it was read;
//! - an object that is another history's stays as it is, and so does one that is an ancestor's of a branch;
//! - one bad answer decides nothing: the object is read again before it counts as damaged. That it cannot be read, although the store
//!   works, counts as damage once it has lasted (see `unreadable`);
//! - if its footer does not say whose it is, nothing that can be read of it may be another history's;
//! - an object whose records were discarded while it was put does not stay, unless a pin keeps it.
//!
//! Must not know: who leads.

use super::object_access::{ObjectMaker, not_replaced};
use super::object_look::{Look, ObjectAt, Whose};
use super::object_root::check_usable;
use crate::error::{Error, ErrorKind, Result};
use crate::replica::state::object_table::StoredAt;
use crate::store::format::objects::StoredObject;
use crate::store::format::older_rows::RowsRun;
use crate::store::format::segment::Base;
use crate::store::format::segment::Footer;
use crate::store::object_file::{MadeObject, Stretch};
use crate::store::objects::deletion::{is_pinned, newest_begin};
use crate::store::objects::names::{Lineage, folder, object_number};
use crate::store::objects::older_rows::fetch;
use crate::types::LogId;
use crate::vault::Vault;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// All objects of a log, to be looked for.
pub(super) struct Listing {
    pub(super) vault: Arc<dyn Vault>,
    pub(super) lineage: Lineage,
    /// Those whose rows are not in the log's table.
    pub(super) runs: Vec<RowsRun>,
    /// The number of each of the others, and how many bytes it has.
    pub(super) stored: Vec<(u64, u32)>,
}

/// An object to be examined whose row is not in the log's table.
pub(super) struct OlderObject {
    pub(super) vault: Arc<dyn Vault>,
    pub(super) lineage: Lineage,
    pub(super) run: RowsRun,
    pub(super) number: u64,
    /// As in an [`Examination`]. The files here may have only a part of it.
    pub(super) maker: Option<ObjectMaker>,
    /// As in an [`Examination`].
    pub(super) has_lasted: bool,
    pub(super) gives_way: Arc<AtomicBool>,
}

/// An object to be examined.
pub(super) struct Examination {
    pub(super) vault: Arc<dyn Vault>,
    pub(super) log: LogId,
    /// The log of which the object is: this one, or an ancestor.
    pub(super) owner: LogId,
    pub(super) at: StoredAt,
    /// Makes it again from the files here. None: they do not have it.
    pub(super) maker: Option<ObjectMaker>,
    /// It could not be read for long, while the object store worked: that is damage.
    pub(super) has_lasted: bool,
    /// Set when something waits that goes first: the examination ends early.
    pub(super) gives_way: Arc<AtomicBool>,
}

/// The result of an examination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is as it was stored; or its records are discarded, and it is no longer needed.
    Sound,
    /// It was not, was stored again, and is now.
    Repaired,
    /// It is not, and cannot be made again here: the reason.
    Damaged(String),
    /// It could not be read, or stored again, although the object store works. That may pass.
    Failed(String),
    /// The examination gave way to something else.
    Interrupted,
}

impl Listing {
    /// The numbers of the objects that are not there as they were stored, by their names and sizes.
    pub(super) fn run(&self) -> Result<BTreeSet<u64>> {
        check_usable(&*self.vault, self.lineage.log)?;
        let of_runs = self.runs.first().map(|run| run.number);
        let oldest = of_runs.or(self.stored.first().map(|(number, _)| *number)).unwrap_or(u64::MAX);
        // Once an ancestor has no object that is needed, it may be deleted with all that it has.
        let ancestors = self.lineage.parts().filter(|(_, part)| part.end > oldest).map(|(owner, _)| owner);
        let mut there = BTreeMap::new();
        for owner in ancestors.chain([self.lineage.log]) {
            for object in self.vault.list(&folder(owner))? {
                let number = object_number(owner, &object.name);
                if let Some(number) = number.filter(|number| self.lineage.owner(*number) == owner) {
                    there.insert(number, object.bytes);
                }
            }
        }
        let is_wrong = |number: u64, bytes: u32| there.get(&number) != Some(&u64::from(bytes));
        let wrong = self.stored.iter().filter(|(number, bytes)| is_wrong(*number, *bytes));
        let mut wrong: BTreeSet<_> = wrong.map(|(number, _)| *number).collect();
        for run in &self.runs {
            match fetch(&*self.vault, &self.lineage, run) {
                Ok((objects, _)) => {
                    let of_run = objects.iter().filter(|at| is_wrong(at.number, at.object.bytes));
                    wrong.extend(of_run.map(|at| at.number));
                }
                // Their sizes are not known: at least they have to be there.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    wrong.insert(run.rows.holder);
                    wrong.extend((run.number..run.rows.below).filter(|number| !there.contains_key(number)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(wrong)
    }
}

impl OlderObject {
    /// Examines the object. Returns where it begins and ends, too, if that is known.
    pub(super) fn run(self) -> (Option<(Base, Base)>, Result<Verdict>) {
        let Self { vault, lineage, run, number, maker, has_lasted, gives_way } = self;
        let fetched = check_usable(&*vault, lineage.log).and_then(|()| fetch(&*vault, &lineage, &run));
        let objects = match fetched {
            Ok((objects, _)) => objects,
            // A leader may know of a discard that has let the rows go as well.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let is_gone = is_needed(&*vault, lineage.log, number).map(|is_needed| !is_needed);
                return (None, if let Ok(true) = is_gone { Ok(Verdict::Sound) } else { Err(error) });
            }
            Err(error) => return (None, Err(error)),
        };
        // None: its records were discarded meanwhile.
        let Some(at) = objects.into_iter().find(|at| at.number == number) else {
            return (None, Ok(Verdict::Sound));
        };
        let (log, owner) = (lineage.log, lineage.owner(number));
        let place = (at.begin, at.state.end);
        (Some(place), Examination { vault, log, owner, at, maker, has_lasted, gives_way }.run())
    }
}

impl Examination {
    pub(super) fn number(&self) -> u64 {
        self.at.number
    }

    /// Examines the object, and stores it again if it has to be and can be.
    ///
    /// # Errors
    /// `Unavailable`: the object store cannot be used now. Any other one is of this object, or of the files here.
    pub(super) fn run(&self) -> Result<Verdict> {
        let (vault, number) = (&*self.vault, self.at.number);
        check_usable(vault, self.log)?;
        let object = ObjectAt { vault, log: self.log, owner: self.owner, number };
        let name = object.name();
        let why = match object.look_twice(&self.at.object, &self.gives_way)? {
            Look::Sound => return Ok(Verdict::Sound),
            Look::Interrupted => return Ok(Verdict::Interrupted),
            Look::Unreadable(error) if !self.has_lasted => return Ok(Verdict::Failed(error.to_string())),
            Look::Unreadable(error) => error.to_string(),
            Look::Wrong(why) => why,
        };
        let whose = object.whose()?;
        match &whose {
            Whose::Footer(footer) if self.is_of_another_history(footer) => {
                return Ok(Verdict::Damaged("it is of another history of this log".to_owned()));
            }
            Whose::Unreadable(error) if !self.has_lasted => return Ok(Verdict::Failed(error.to_string())),
            _ => {}
        }
        if !self.is_needed()? {
            return Ok(Verdict::Sound);
        }
        if self.owner != self.log {
            let what =
                format!("{why}. It is {name}, of log {:032x}, of which this log is a branch", self.owner.0);
            return Ok(Verdict::Damaged(what));
        }
        let Some(made) = self.make(&name)? else { return Ok(Verdict::Damaged(why)) };
        let says_nothing = matches!(whose, Whose::Unreadable(_) | Whose::Nobodys);
        if says_nothing && !object.agrees_with(&made, &whose)? {
            return Ok(Verdict::Damaged(not_replaced(&name, &why)));
        }
        let was_there = !matches!(vault.size(&name), Ok(None));
        if let Err(error) = vault.put(&name, &made.pieces) {
            if error.kind() != ErrorKind::Unavailable {
                return Err(error);
            }
            check_usable(vault, self.log)?;
            return Ok(Verdict::Failed(format!("{why}; and it could not be stored again: {error}")));
        }
        if !self.is_needed()? {
            // A leader that knew of a later discard may have deleted it before the put: nothing would delete it again until the next discard.
            // One that was there stays as long as any other (T2, S2): the records can have been discarded just now.
            if !was_there {
                vault.delete(&name)?;
            }
            return Ok(Verdict::Sound);
        }
        // The cause of the damage may still be there.
        let why = match object.look_twice(&self.at.object, &AtomicBool::new(false))? {
            Look::Wrong(why) => why,
            Look::Unreadable(error) => error.to_string(),
            Look::Sound => return Ok(Verdict::Repaired),
            Look::Interrupted => return Ok(Verdict::Interrupted),
        };
        Ok(Verdict::Damaged(format!("{why}, although it was stored again")))
    }

    /// Whether this footer says something else than the log: two clusters continue one log, and store its objects in one place.
    fn is_of_another_history(&self, footer: &Footer) -> bool {
        let state = self.at.state;
        (footer.last_raft, footer.last_term, footer.next) != (state.end.raft, state.end.term, state.end.next)
            || (footer.last_timestamp, footer.index_crc) != (state.timestamp, self.at.object.index_crc)
    }

    fn is_needed(&self) -> Result<bool> {
        is_needed(&*self.vault, self.log, self.at.number)
    }

    /// Makes the object again. None: it is not in the files here.
    fn make(&self, name: &str) -> Result<Option<MadeObject>> {
        let Some(maker) = &self.maker else { return Ok(None) };
        let StoredAt { number, begin, state, object, .. } = self.at;
        match maker.make(&Stretch { log: self.log, number, begin, end: state.end }) {
            Ok(made) if made.object == object => Ok(Some(made)),
            Ok(made) => Err(other_bytes(name, &made.object, &object)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether an object has to stay. Not if the object store says that its records are discarded, and no pin keeps it. A leader
/// may know of more discards than this replica. The begin is read first: see `store/objects/deletion.rs`.
fn is_needed(vault: &dyn Vault, log: LogId, number: u64) -> Result<bool> {
    let is_discarded = newest_begin(vault, log)?.is_some_and(|begin| number < begin);
    Ok(!is_discarded || is_pinned(vault, log, number)?)
}

fn other_bytes(name: &str, made: &StoredObject, wanted: &StoredObject) -> Error {
    let what = format!(
        "{name} cannot be stored again: the files here lead to {made:?}, and the log says {wanted:?}"
    );
    Error::new(ErrorKind::Corrupt, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::crc::Crc;
    use crate::store::format::objects::ObjectState;
    use crate::store::objects::names::{object_name, root_name};
    use crate::store::segment::Base;
    use crate::types::Timestamp;
    use crate::vault::MemoryVault;

    /// An examination gives way before each chunk. Without the entries it finds damage, and changes nothing.
    #[test]
    fn examination_gives_way() {
        let (vault, log) = (Arc::new(MemoryVault::default()), LogId(7));
        let name = object_name(log, 3);
        vault.put(&root_name(log), &["root".into()]).unwrap();
        let object = StoredObject {
            bytes: 9,
            crc: Crc::new().add(b"an object").sum(),
            data_end: 0,
            index_count: 0,
            index_crc: 0,
        };
        let state = ObjectState { end: Base::default(), timestamp: Timestamp(0), stored: Some(object) };
        let at = StoredAt { number: 3, begin: Base::default(), state, object, before: Timestamp(0) };
        let run = |waits: bool| {
            let gives_way = Arc::new(AtomicBool::new(waits));
            Examination {
                vault: vault.clone(),
                log,
                owner: log,
                at,
                maker: None,
                has_lasted: false,
                gives_way,
            }
            .run()
            .unwrap()
        };
        assert!(matches!(run(false), Verdict::Damaged(_)));
        vault.put(&name, &["an object".into()]).unwrap();
        assert_eq!((run(true), run(false)), (Verdict::Interrupted, Verdict::Sound));
        vault.put(&name, &["an onject".into()]).unwrap();
        assert!(matches!(run(false), Verdict::Damaged(_)));
        assert_eq!(run(true), Verdict::Interrupted);
        vault.delete(&root_name(log)).unwrap();
        let gives_way = Arc::default();
        let error = Examination { vault, log, owner: log, at, maker: None, has_lasted: false, gives_way }
            .run()
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}
