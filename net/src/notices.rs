//! Notices: messages that chiplog's crates log through `tracing`, as one text each, for programs without their own
//! subscriber. The bindings for C and Python use this.
//!
//! ```text
//! any thread of the process: warn!(…) ── subscriber: wanted? ── one text ── read lock ──> the callback
//!                            Notices::subscribe, stop ───────────────────── write lock ──┘
//! ```
//!
//! Invariants:
//! - Once [`Notices::stop`], or [`Notices::subscribe`] with another callback, has returned, the previous callback is
//!   not running and is never called again.
//! - Events from within a callback are dropped: no callback runs inside another one on the same thread.
//! - An unwanted event costs one comparison: `tracing` knows the level.
//! - In a forked child no notice is passed on, and no lock of the parent is taken, until the child calls
//!   [`Notices::subscribe`].
//!
//! Must not know: what the callback does.

use chiplog::internal::ForkGuard;
use chiplog::{Error, ErrorKind, Result};
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

/// The severity of a notice. The numbers are those of the C API; they never change.
///
/// ```
/// use chiplog_net::notices::Severity;
/// assert!(Severity::Error < Severity::Info);
/// assert_eq!(Severity::from_code(2), Some(Severity::Warn));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Severity {
    /// Something failed and needs attention.
    Error = 1,
    /// Something is wrong, and chiplog continues.
    Warn = 2,
    /// Something changed: a new leader, a discard.
    Info = 3,
    /// Details for diagnosis.
    Debug = 4,
    /// Every step.
    Trace = 5,
}

impl Severity {
    /// All severities, the most serious first.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// The number in the C API.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The severity with this number.
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

/// A notice. Valid during the callback only.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Notice<'a> {
    /// Its severity.
    pub severity: Severity,
    /// The module that logged it, such as `chiplog_net::client::producer::sender`. For people: it can change in a later
    /// version.
    pub target: &'a str,
    /// The message, followed by its fields as `name=value`. For people.
    pub text: &'a str,
}

type Callback = Box<dyn Fn(Notice<'_>) + Send + Sync>;

/// Passes chiplog's notices to a callback: one callback per process, for all logs, clients and followers. For programs
/// without a subscriber of `tracing`; in Rust, a subscriber is the better choice.
///
/// ```
/// use chiplog_net::notices::{Notices, Severity};
/// Notices::subscribe(Severity::Warn, |notice| println!("{:?} {}: {}", notice.severity, notice.target, notice.text))?;
/// // … logs, clients, followers …
/// Notices::stop()?;
/// # Ok::<(), chiplog::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Notices;

/// The least wanted severity, as its number; 0: none.
static WANTED: AtomicU32 = AtomicU32::new(0);

/// The callback of one process. A forked child's is linked from its parent's.
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
    /// Calls `callback` with each notice of chiplog's crates that has `severity` or a more serious one. The callback
    /// runs on the thread that logs the notice, several at the same time. It replaces a previous callback, and waits
    /// for that one if it is running. Events of other crates are not passed on.
    ///
    /// The callback must not block, because locks of the log or of a client may be held where it is called. For the
    /// same reason it must not use chiplog. A panic in the callback is ignored.
    ///
    /// # Errors
    /// `InvalidArgument`: the process has another subscriber of `tracing`, or the call is made from the callback. `Io`:
    /// no memory page could be allocated to detect a forked child.
    pub fn subscribe(
        severity: Severity,
        callback: impl Fn(Notice<'_>) + Send + Sync + 'static,
    ) -> Result<()> {
        refuse_inside()?;
        if !is_subscribed() {
            let what = "this program already has a `tracing` subscriber, which receives the notices";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        change(own_place()?, severity.code(), Some(Box::new(callback)));
        Ok(())
    }

    /// Stops passing on notices. Waits for the callback, if it is running. Does nothing if there is no callback.
    ///
    /// # Errors
    /// `InvalidArgument`: called from the callback.
    pub fn stop() -> Result<()> {
        refuse_inside()?;
        if let Some(place) = place() {
            change(place, 0, None);
        }
        Ok(())
    }

    /// Whether this thread is in the callback now, where chiplog must not be used.
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
    drop(before); // dropping it may run any code
}

/// Whether the process's subscriber is this module's. The first call sets it if there is none.
fn is_subscribed() -> bool {
    static IS_OURS: OnceLock<bool> = OnceLock::new();
    *IS_OURS.get_or_init(|| tracing::subscriber::set_global_default(NoticeSubscriber).is_ok())
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
        let _ = end.set(new); // another thread may have set one by now: that one is used
    }
}

/// The subscriber.
struct NoticeSubscriber;

fn is_wanted(metadata: &Metadata<'_>) -> bool {
    !metadata.is_span()
        && Severity::of(*metadata.level()).code() <= WANTED.load(Ordering::Relaxed)
        && metadata.target().starts_with("chiplog")
}

impl Subscriber for NoticeSubscriber {
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
        // Check again: nobody changes either while this lock is held.
        if let Some(callback) = callback.as_ref().filter(|_| is_wanted(metadata)) {
            let severity = Severity::of(*metadata.level());
            let notice = Notice { severity, target: metadata.target(), text: &text };
            let _ = catch_unwind(AssertUnwindSafe(|| callback(notice)));
        }
    }

    // Spans are ignored.

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A guard: while it lives, this thread is in the callback.
struct Inside;

impl Inside {
    /// None: the thread is in the callback already, or is ending.
    fn enter() -> Option<Self> {
        let was_inside = INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true);
        // Created only when entering: its drop marks the end of the callback.
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
        // Writing to a string does not fail; the rest of a value whose formatting fails is left out.
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
