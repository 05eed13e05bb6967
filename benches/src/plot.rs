//! Pictures: SVG written by hand, so that a run needs neither fonts nor a drawing library.
//!
//! A picture is a grid of panels; a panel has axes, a few lines or bars, and a legend. Must not know: how anything was
//! measured.

use crate::bar::Bars;
use crate::measure::Percentiles;
use crate::report::{Report, Row, number};
use std::fmt::Write;

const BLUE: &str = "#2563eb";
const GREY: &str = "#9ca3af";
const ORANGE: &str = "#ea580c";
const RED: &str = "#be123c";
const GREEN: &str = "#059669";
const INK: &str = "#1f2937";
const FAINT: &str = "#e5e7eb";
const SOFT: &str = "#6b7280";

const PANEL_WIDTH: f64 = 520.0;
const PANEL_HEIGHT: f64 = 360.0;
const HEAD: f64 = 64.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 74.0;
const BOTTOM: f64 = 52.0;

#[derive(Clone, Copy, PartialEq)]
enum Scale {
    /// From 0.
    Linear,
    Log,
}

struct Line {
    name: String,
    color: &'static str,
    dashed: bool,
    points: Vec<(f64, f64)>,
}

struct Panel {
    title: &'static str,
    x_label: &'static str,
    y_label: &'static str,
    y_scale: Scale,
    lines: Vec<Line>,
}

/// The curves of a run, for the workloads that were measured.
pub(crate) fn overview(report: &Report) -> String {
    let panels: Vec<Panel> = [throughput(report), latency(report), open_loop(report), syncs(report)]
        .into_iter()
        .flatten()
        .collect();
    picture("chiplog beside the machine's own limits", &report.machine.to_string(), &panels)
}

fn line(name: &str, color: &'static str, points: Vec<(f64, f64)>) -> Line {
    Line { name: name.into(), color, dashed: false, points }
}

fn dashed(name: &str, color: &'static str, points: Vec<(f64, f64)>) -> Line {
    Line { dashed: true, ..line(name, color, points) }
}

fn throughput(report: &Report) -> Option<Panel> {
    let rows = report.of("append_threads");
    let ours = rows.iter().map(|row| (row.x, row.figure / 1000.0)).collect();
    let bare = rows.iter().filter_map(|row| Some((row.x, row.limit? / 1000.0))).collect();
    (rows.len() > 1).then(|| Panel {
        title: "Durable appends of 2 KiB, blocking threads",
        x_label: "threads",
        y_label: "thousand appends a second",
        y_scale: Scale::Linear,
        lines: vec![line("chiplog", BLUE, ours), dashed("bare loop: no format, no checksum", GREY, bare)],
    })
}

/// Append rates by connections, for the bars that were measured.
pub(crate) fn connections(all: &Bars) -> String {
    let panel = |title, of: &str| {
        let curve = |name: &str| {
            let name = format!("{name}_{of}");
            let mut bars = all.bars.iter().filter(|bar| bar.name.starts_with(&name));
            let points = bars.find(|bar| !bar.curve.is_empty()).map(|bar| bar.curve.clone());
            points.unwrap_or_default().iter().map(|(x, rate)| (*x, rate / 1000.0)).collect::<Vec<_>>()
        };
        let lines = vec![
            line("chiplog.v1.Log", BLUE, curve("net_native")),
            line("logspec.Log", GREEN, curve("net_logspec")),
            dashed("Kafka", GREY, curve("net_kafka")),
        ];
        let lines: Vec<Line> = lines.into_iter().filter(|line| !line.points.is_empty()).collect();
        (!lines.is_empty()).then_some(Panel {
            title,
            x_label: "connections",
            y_label: "thousand appends a second",
            y_scale: Scale::Linear,
            lines,
        })
    };
    let one = panel("128 appenders of 2 KiB, one server", "one");
    let three = panel("128 appenders of 2 KiB, durable on two of three", "three");
    let panels: Vec<Panel> = one.into_iter().chain(three).collect();
    picture("Appends over the network", &all.machine.to_string(), &panels)
}

fn percentiles(rows: &[&Row], of: fn(&Row) -> Option<Percentiles>) -> [Vec<(f64, f64)>; 3] {
    let pick = |pick: fn(&Percentiles) -> f64| {
        rows.iter().filter_map(|row| Some((row.x, pick(&of(row)?)))).collect()
    };
    [pick(|l| l.p50), pick(|l| l.p99), pick(|l| l.p999)]
}

fn latency(report: &Report) -> Option<Panel> {
    let rows = report.of("append_threads");
    let [p50, p99, p999] = percentiles(&rows, |row| row.latency);
    let [bare, ..] = percentiles(&rows, |row| row.limit_latency);
    (rows.len() > 1).then(|| Panel {
        title: "How long an append waits, blocking threads",
        x_label: "threads",
        y_label: "microseconds",
        y_scale: Scale::Log,
        lines: vec![
            line("p99.9", RED, p999),
            line("p99", ORANGE, p99),
            line("median", BLUE, p50),
            dashed("bare loop, median", GREY, bare),
        ],
    })
}

fn open_loop(report: &Report) -> Option<Panel> {
    let rows = report.of("append_open_loop");
    let [p50, p99, p999] = percentiles(&rows, |row| row.latency);
    (rows.len() > 1).then(|| Panel {
        title: "Latency from the moment an append was due, by rate",
        x_label: "appends a second offered",
        y_label: "microseconds",
        y_scale: Scale::Log,
        lines: vec![line("p99.9", RED, p999), line("p99", ORANGE, p99), line("median", BLUE, p50)],
    })
}

fn syncs(report: &Report) -> Option<Panel> {
    let mut rows = report.of("raw");
    rows.retain(|row| row.latency.is_some());
    let kib: Vec<Row> = rows.iter().map(|row| Row { x: row.x / 1024.0, ..(*row).clone() }).collect();
    let [p50, p99, p999] = percentiles(&kib.iter().collect::<Vec<_>>(), |row| row.latency);
    (rows.len() > 1).then(|| Panel {
        title: "The disk: pwrite + fdatasync into a zero-filled file",
        x_label: "KiB a write",
        y_label: "microseconds",
        y_scale: Scale::Log,
        lines: vec![line("p99.9", RED, p999), line("p99", ORANGE, p99), line("median", GREEN, p50)],
    })
}

/// The whole document: a heading and panels, two abreast.
fn picture(title: &str, subtitle: &str, panels: &[Panel]) -> String {
    let columns = panels.len().clamp(1, 2);
    let height = HEAD + PANEL_HEIGHT * panels.len().div_ceil(2) as f64;
    let mut out = open(PANEL_WIDTH * columns as f64, height, title, subtitle);
    for (n, panel) in panels.iter().enumerate() {
        let (x, y) = ((n % 2) as f64 * PANEL_WIDTH, HEAD + (n / 2) as f64 * PANEL_HEIGHT);
        let _ = writeln!(out, r#"<g transform="translate({x},{y})">"#);
        panel.draw(&mut out);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn open(width: f64, height: f64, title: &str, subtitle: &str) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="system-ui, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">
<rect width="{width}" height="{height}" rx="8" fill="white"/>
"#
    );
    text(&mut out, (24.0, 32.0), title, r#"font-size="17" font-weight="600""#);
    text(&mut out, (24.0, 52.0), subtitle, &format!(r#"fill="{SOFT}""#));
    out
}

fn text(out: &mut String, (x, y): (f64, f64), what: &str, style: &str) {
    let what = what.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" {style}>{what}</text>"#);
}

fn rule(out: &mut String, from: (f64, f64), to: (f64, f64), color: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(out, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{color}"/>"#);
}

impl Panel {
    fn draw(&self, out: &mut String) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let ticks_y = match self.y_scale {
            Scale::Linear => ticks_linear(points().map(|p| p.1).fold(0.0, f64::max)),
            Scale::Log => ticks_log(points().map(|p| p.1)),
        };
        let mut ticks_x: Vec<f64> = points().map(|p| p.0).collect();
        ticks_x.sort_by(f64::total_cmp);
        ticks_x.dedup();
        let x = Axis::new(&ticks_x, Scale::Log, LEFT + 14.0, PANEL_WIDTH - RIGHT - 14.0);
        let y = Axis::new(&ticks_y, self.y_scale, PANEL_HEIGHT - BOTTOM, TOP);
        let (bottom, right) = (PANEL_HEIGHT - BOTTOM, PANEL_WIDTH - RIGHT);

        text(out, (24.0, 22.0), self.title, r#"font-size="14" font-weight="600""#);
        for tick in &ticks_y {
            let at = y.place(*tick);
            rule(out, (LEFT, at), (right, at), FAINT);
            text(out, (LEFT - 8.0, at + 4.0), &short(*tick), r#"text-anchor="end""#);
        }
        let mut free_from = f64::NEG_INFINITY;
        for tick in &ticks_x {
            let at = x.place(*tick);
            let label = short(*tick);
            let half = 4.0 * label.len() as f64;
            rule(out, (at, bottom), (at, bottom + 4.0), SOFT);
            if at - half >= free_from {
                text(out, (at, bottom + 18.0), &label, r#"text-anchor="middle""#);
                free_from = at + half;
            }
        }
        rule(out, (LEFT, bottom), (right, bottom), SOFT);
        let middle = (LEFT + right) / 2.0;
        text(
            out,
            (middle, PANEL_HEIGHT - 14.0),
            self.x_label,
            &format!(r#"text-anchor="middle" fill="{SOFT}""#),
        );
        let turned = format!(
            r#"text-anchor="middle" fill="{SOFT}" transform="rotate(-90 20 {0})""#,
            (TOP + bottom) / 2.0
        );
        text(out, (20.0, (TOP + bottom) / 2.0), self.y_label, &turned);
        self.legend(out);
        for line in &self.lines {
            line.draw(out, &x, &y);
        }
    }

    fn legend(&self, out: &mut String) {
        let mut at = LEFT;
        for line in &self.lines {
            let dash = line.dash();
            let _ = writeln!(
                out,
                r#"<line x1="{at:.1}" y1="44" x2="{:.1}" y2="44" stroke="{}" stroke-width="2.5" {dash}/>"#,
                at + 20.0,
                line.color
            );
            text(out, (at + 26.0, 48.0), &line.name, "");
            at += 26.0 + 6.6 * line.name.len() as f64 + 18.0;
        }
    }
}

impl Line {
    fn dash(&self) -> &'static str {
        if self.dashed { r#"stroke-dasharray="5 4""# } else { "" }
    }

    fn draw(&self, out: &mut String, x: &Axis, y: &Axis) {
        let places: Vec<(f64, f64)> = self.points.iter().map(|p| (x.place(p.0), y.place(p.1))).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            out,
            r#"<polyline points="{}" fill="none" stroke="{}" stroke-width="2.2" stroke-linejoin="round" {}/>"#,
            path.join(" "),
            self.color,
            self.dash()
        );
        for ((at_x, at_y), (value_x, value)) in places.iter().zip(&self.points) {
            // A tooltip shows the value.
            let title = format!("{}: {} at {}", self.name, number(*value), number(*value_x));
            let _ = writeln!(
                out,
                r#"<circle cx="{at_x:.1}" cy="{at_y:.1}" r="3" fill="{}"><title>{title}</title></circle>"#,
                self.color
            );
        }
    }
}

/// Maps values to positions between two ends.
struct Axis {
    low: f64,
    high: f64,
    scale: Scale,
    from: f64,
    to: f64,
}

impl Axis {
    /// `ticks` in ascending order span the axis.
    fn new(ticks: &[f64], scale: Scale, from: f64, to: f64) -> Self {
        let (low, high) = (ticks.first().copied().unwrap_or(1.0), ticks.last().copied().unwrap_or(1.0));
        Self { low, high, scale, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.5 };
        self.from + (self.to - self.from) * part
    }
}

/// 0 and multiples of a round step, to just above `most`.
fn ticks_linear(most: f64) -> Vec<f64> {
    let most = if most > 0.0 { most } else { 1.0 };
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * power);
    (0..=(most / step).ceil() as u32).map(|n| f64::from(n) * step).collect()
}

/// 1, 2, 5, 10 … around all values.
fn ticks_log(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let (low, high) =
        values.filter(|v| *v > 0.0).fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
    if high == 0.0 {
        return vec![1.0, 10.0];
    }
    let all: Vec<f64> = (-3..9).flat_map(|p| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(p))).collect();
    let from = all.iter().rposition(|tick| *tick <= low).unwrap_or(0);
    let to = all.iter().position(|tick| *tick >= high).unwrap_or(all.len() - 1);
    all[from..=to.max(from + 1).min(all.len() - 1)].to_vec()
}

/// A tick's text: `500`, `20k`, `1.5M`.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let digits = if value.fract() == 0.0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$}{unit}")
}

/// Each bar's ratio relative to its bar: to the right of the mark is better.
pub(crate) fn bars(all: &Bars) -> String {
    const WIDTH: f64 = 860.0;
    const STEP: f64 = 38.0;
    const NAMES: f64 = 200.0;
    const MARK: f64 = 480.0;
    let height = HEAD + 40.0 + STEP * all.bars.len() as f64;
    let mut out = open(
        WIDTH,
        height,
        "The bars: what was reached, as a part of what is asked",
        &all.machine.to_string(),
    );
    text(&mut out, (MARK, HEAD + 14.0), "asked", &format!(r#"text-anchor="middle" fill="{SOFT}""#));
    for (n, bar) in all.bars.iter().enumerate() {
        let y = HEAD + 28.0 + n as f64 * STEP;
        let color = if bar.met { GREEN } else { ORANGE };
        let length = (MARK - NAMES) * bar.merit.min(1.7);
        text(&mut out, (NAMES - 10.0, y + 16.0), &bar.name, r#"text-anchor="end""#);
        let _ = writeln!(
            out,
            r#"<rect x="{NAMES}" y="{y:.1}" width="{length:.1}" height="22" rx="3" fill="{color}" fill-opacity="0.85"/>"#
        );
        let label = format!("{} {}  (ratio {:.2}, bar {})", number(bar.figure), bar.unit, bar.ratio, bar.bar);
        let (at, style) =
            if length > 260.0 { (NAMES + 10.0, r#"fill="white""#) } else { (NAMES + length + 8.0, "") };
        text(&mut out, (at, y + 15.5), &label, style);
    }
    let end = HEAD + 28.0 + STEP * all.bars.len() as f64;
    let _ = writeln!(
        out,
        r#"<line x1="{MARK}" y1="{:.1}" x2="{MARK}" y2="{end:.1}" stroke="{INK}" stroke-dasharray="4 3"/>"#,
        HEAD + 20.0
    );
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_span_the_values() {
        assert_eq!(ticks_linear(196.0), [0.0, 50.0, 100.0, 150.0, 200.0]);
        assert_eq!(ticks_log([130.0, 900.0].into_iter()), [100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(ticks_log([100.0].into_iter()), [100.0, 200.0]);
        assert_eq!(ticks_log(std::iter::empty()), [1.0, 10.0]);
    }

    #[test]
    fn axes_map_ends_to_ends() {
        let axis = Axis::new(&[1.0, 2.0, 128.0], Scale::Log, 10.0, 80.0);
        assert_eq!((axis.place(1.0), axis.place(128.0), axis.place(1000.0)), (10.0, 80.0, 80.0));
        assert!((axis.place(2.0) - 20.0).abs() < 1e-9);
        assert_eq!(Axis::new(&[5.0], Scale::Log, 0.0, 10.0).place(5.0), 5.0);
    }

    #[test]
    fn what_a_picture_shows_is_escaped_and_whole() {
        let panel = Panel {
            title: "a < b",
            x_label: "x",
            y_label: "y",
            y_scale: Scale::Linear,
            lines: vec![line("one", BLUE, vec![(1.0, 5.0), (2.0, 7.0)]), dashed("two", GREY, vec![])],
        };
        let svg = picture("T & T", "machine", &[panel]);
        assert!(svg.contains("a &lt; b") && svg.contains("T &amp; T"));
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
