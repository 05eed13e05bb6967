//! Notices: what chiplog's crates notice on their own, which they tell to `tracing`, as one text each; for programs that
//! have no subscriber of their own. The bindings for C and Python hand them on.
//!
//! ```text
//! any thread of the process: warn!(…) ── Teller: wanted? ── one text ── read lock ──> the callback
//!                            Notices::tell, stop ────────────────────── write lock ──┘
//! ```
//!
//! Invariants:
//! - Once [`Notices::stop`], or [`Notices::tell`] with another callback, has returned, the callback before is not running and is
//!   not called any more.
//! - A callback's own events are not told: no callback runs inside another one on the same thread.
//! - What is not wanted costs one comparison: `tracing` is told the level.
//! - In a forked child nothing is told, and no lock of the parent's is taken, until the child asks for itself.
//!
//! Must not know: who asks.

use chiplog::{Error, ErrorKind, ForkGuard, Result};
use std::cell::Cell;
use std::fmt::{self, Debug, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, Subscriber};
use tracing::{Event, Level, Metadata};

/// How serious a notice is. The numbers are those that C uses; they never change.
///
/// ```
/// use chiplog_net::notices::Severity;
/// assert!(Severity::Error < Severity::Info);
/// assert_eq!(Severity::from_code(2), Some(Severity::Warn));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Severity {
    /// Something failed, and somebody has to look.
    Error = 1,
    /// Something is not as it should be, and chiplog goes on.
    Warn = 2,
    /// Something changed: another leader, a discard.
    Info = 3,
    /// What helps to find out why.
    Debug = 4,
    /// Every step.
    Trace = 5,
}

impl Severity {
    /// All of them, the most serious first.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// The number that C uses.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The severity of a number.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|severity| severity.code() == code)
    }

    fn of(level: Level) -> Self {
        match level {
            Level::ERROR => Self::Error,
            Level::WARN => Self::Warn,
            Level::INFO => Self::Info,
            Level::DEBUG => Self::Debug,
            _ => Self::Trace,
        }
    }
}

/// Something that was noticed. Borrowed for the call.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Notice<'a> {
    /// How serious it is.
    pub severity: Severity,
    /// The part of chiplog that noticed it, such as `chiplog_net::client::producer::sender`. For people: it can be another one in a later
    /// version.
    pub target: &'a str,
    /// What was noticed, in words, and `name=value` for what else is known of it. For people.
    pub text: &'a str,
}

type Callback = Box<dyn Fn(Notice<'_>) + Send + Sync>;

/// What is told of chiplog's notices in this process, and to whom: one callback for all logs, clients and followers. For
/// programs without a subscriber of `tracing`; a program in Rust has a better choice of those.
///
/// ```
/// use chiplog_net::notices::{Notices, Severity};
/// Notices::tell(Severity::Warn, |notice| println!("{:?} {}: {}", notice.severity, notice.target, notice.text))?;
/// // … logs, clients, followers …
/// Notices::stop()?;
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Notices;

/// The least severity that is wanted, as its number; 0: none.
static WANTED: AtomicU32 = AtomicU32::new(0);

/// The callback of one process. Those of forked children hang on their parents'.
struct Place {
    guard: ForkGuard,
    callback: RwLock<Option<Callback>>,
    next: OnceLock<Box<Place>>,
}

static FIRST: OnceLock<Box<Place>> = OnceLock::new();

thread_local! {
    /// Whether this thread is in the callback.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Notices {
    /// Calls `callback` with each notice of chiplog's crates that is as serious as `severity` or more, on whichever thread
    /// notices it, several at once; from now on, and instead of any callback before, which is waited for if it runs. Events
    /// of other crates are not told.
    ///
    /// The callback must not block, for locks of the log or of a client may be held where it is called, and must not use
    /// chiplog for the same reason. What panics in it is left out.
    ///
    /// # Errors
    /// `InvalidArgument`: the process has another subscriber of `tracing`, or this is the callback. `Io`: no memory page could be
    /// had that tells a forked child.
    pub fn tell(severity: Severity, callback: impl Fn(Notice<'_>) + Send + Sync + 'static) -> Result<()> {
        refuse_inside()?;
        if !is_subscribed() {
            let what = "this program already has a `tracing` subscriber, which receives the notices";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        change(own_place()?, severity.code(), Some(Box::new(callback)));
        Ok(())
    }

    /// Tells nobody any more: waits for the callback, if it runs. Without one nothing happens.
    ///
    /// # Errors
    /// `InvalidArgument`: this is the callback.
    pub fn stop() -> Result<()> {
        refuse_inside()?;
        if let Some(place) = place() {
            change(place, 0, None);
        }
        Ok(())
    }

    /// Whether this thread is in the callback just now, where chiplog must not be used.
    pub fn is_inside() -> bool {
        INSIDE.try_with(Cell::get).unwrap_or(false)
    }
}

fn refuse_inside() -> Result<()> {
    if Notices::is_inside() {
        return Err(Error::new(ErrorKind::InvalidArgument, "called from the callback for notices"));
    }
    Ok(())
}

fn change(place: &Place, wanted: u32, callback: Option<Callback>) {
    let before = {
        let mut current = place.callback.write().unwrap_or_else(PoisonError::into_inner);
        WANTED.store(wanted, Ordering::Relaxed);
        std::mem::replace(&mut *current, callback)
    };
    tracing_core::callsite::rebuild_interest_cache();
    drop(before); // it may do anything
}

/// Whether the process's subscriber is ours; from the first call on, if it has no other.
fn is_subscribed() -> bool {
    static IS_OURS: OnceLock<bool> = OnceLock::new();
    *IS_OURS.get_or_init(|| tracing::subscriber::set_global_default(Teller).is_ok())
}

/// The place of this process, if there is one.
fn place() -> Option<&'static Place> {
    let mut place = FIRST.get()?;
    while place.guard.is_child() {
        place = place.next.get()?;
    }
    Some(place)
}

fn own_place() -> Result<&'static Place> {
    let failed = |e| Error::new(ErrorKind::Io, format!("cannot guard notices against fork: {e}"));
    loop {
        if let Some(place) = place() {
            return Ok(place);
        }
        let guard = ForkGuard::new().map_err(failed)?;
        let new = Box::new(Place { guard, callback: RwLock::new(None), next: OnceLock::new() });
        let mut end = &FIRST;
        while let Some(place) = end.get() {
            end = &place.next;
        }
        let _ = end.set(new); // another thread's may be there by now: it serves as well
    }
}

/// The subscriber.
struct Teller;

fn is_wanted(metadata: &Metadata<'_>) -> bool {
    !metadata.is_span()
        && Severity::of(*metadata.level()).code() <= WANTED.load(Ordering::Relaxed)
        && metadata.target().starts_with("chiplog")
}

impl Subscriber for Teller {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_wanted(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_wanted(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match WANTED.load(Ordering::Relaxed) {
            0 => LevelFilter::OFF,
            1 => LevelFilter::ERROR,
            2 => LevelFilter::WARN,
            3 => LevelFilter::INFO,
            4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let Some(place) = place().filter(|_| is_wanted(metadata)) else { return };
        let Some(_inside) = Inside::enter() else { return };
        let mut words = Words::default();
        event.record(&mut words);
        let text = words.text();
        let callback = place.callback.read().unwrap_or_else(PoisonError::into_inner);
        // Again: with this lock held nobody changes either.
        if let Some(callback) = callback.as_ref().filter(|_| is_wanted(metadata)) {
            let severity = Severity::of(*metadata.level());
            let notice = Notice { severity, target: metadata.target(), text: &text };
            let _ = catch_unwind(AssertUnwindSafe(|| callback(notice)));
        }
    }

    // There are no spans.

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// While it lives, this thread is in the callback.
struct Inside;

impl Inside {
    /// None: it is there already, or just ending.
    fn enter() -> Option<Self> {
        let was_inside = INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true);
        // Made only where it is: its end is the callback's.
        if was_inside { None } else { Some(Self) }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(false));
    }
}

/// An event's message, and its other fields.
#[derive(Default)]
struct Words {
    message: String,
    fields: String,
}

impl Words {
    fn text(mut self) -> String {
        if self.message.is_empty() {
            return self.fields.trim_start().to_owned();
        }
        self.message.push_str(&self.fields);
        self.message
    }

    fn put(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        // Writing to a text does not fail; what a value's own writing fails at is left out.
        let _ = match field.name() {
            "message" => self.message.write_fmt(value),
            name => write!(self.fields, " {name}={value}"),
        };
    }
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.put(field, format_args!("{value}")),
            _ => self.put(field, format_args!("{value:?}")),
        }
    }
}
