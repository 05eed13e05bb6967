//! Samples: each process's memory and descriptors over time, and whether they stay flat: a line through the later half
//! of the samples, those of the process that runs then.

use crate::servers::Sample;
use serde::Serialize;

/// A process at a moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Point {
    pub(crate) seconds: f64,
    /// The server's number; 0: this program.
    pub(crate) node: u64,
    pub(crate) process: u32,
    #[serde(flatten)]
    pub(crate) sample: Sample,
}

/// The course of one figure of a process in the later half.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Course {
    pub(crate) node: u64,
    pub(crate) what: &'static str,
    pub(crate) samples: usize,
    pub(crate) seconds: f64,
    pub(crate) mean: f64,
    pub(crate) peak: f64,
    pub(crate) slope_per_hour: f64,
    /// The rise of the line in the time of these samples.
    pub(crate) growth: f64,
    pub(crate) growth_max: f64,
    pub(crate) flat: bool,
}

/// A figure may grow by a tenth of its mean, or by this much if that is more: allocators and caches vary.
const MEMORY_SLACK: f64 = (8 << 20) as f64;
const DESCRIPTORS_SLACK: f64 = 8.0;

/// The courses of all processes from `from` seconds on.
pub(crate) fn courses(points: &[Point], from: f64) -> Vec<Course> {
    let mut nodes: Vec<u64> = points.iter().map(|p| p.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let mut courses = Vec::new();
    for node in nodes {
        let process = points.iter().rev().find(|p| p.node == node).map(|p| p.process);
        let late: Vec<&Point> = points
            .iter()
            .filter(|p| p.node == node && Some(p.process) == process && p.seconds >= from)
            .collect();
        let of = |what: &'static str, slack: f64, value: fn(&Sample) -> u64| {
            course(
                node,
                what,
                slack,
                &late.iter().map(|p| (p.seconds, value(&p.sample) as f64)).collect::<Vec<_>>(),
            )
        };
        courses.push(of("memory_bytes", MEMORY_SLACK, |s| s.anonymous_bytes));
        courses.push(of("descriptors", DESCRIPTORS_SLACK, |s| s.descriptors));
    }
    courses
}

fn course(node: u64, what: &'static str, slack: f64, values: &[(f64, f64)]) -> Course {
    let n = values.len().max(1) as f64;
    let mean = |pick: fn(&(f64, f64)) -> f64| values.iter().map(pick).sum::<f64>() / n;
    let (time, level) = (mean(|v| v.0), mean(|v| v.1));
    let spread: f64 = values.iter().map(|v| (v.0 - time).powi(2)).sum();
    let along: f64 = values.iter().map(|v| (v.0 - time) * (v.1 - level)).sum();
    let slope = if spread > 0.0 { along / spread } else { 0.0 };
    let seconds = values.last().map_or(0.0, |last| last.0 - values[0].0);
    let (growth, growth_max) = (slope * seconds, slack.max(level / 10.0));
    Course {
        node,
        what,
        samples: values.len(),
        seconds,
        mean: level,
        peak: values.iter().map(|v| v.1).fold(0.0, f64::max),
        slope_per_hour: slope * 3600.0,
        growth,
        growth_max,
        flat: growth <= growth_max && values.len() > 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(memory: impl Fn(u64) -> u64) -> Vec<Point> {
        let point = |n: u64| Point {
            seconds: n as f64,
            node: 1,
            process: if n < 40 { 5 } else { 6 },
            sample: Sample { anonymous_bytes: memory(n), resident_bytes: 0, descriptors: 20 + n % 3 },
        };
        (0..200).map(point).collect()
    }

    #[test]
    fn growth_is_told_from_noise() {
        const MIB: u64 = 1 << 20;
        let flat = courses(&points(|n| 50 * MIB + (n % 7) * 3 * MIB), 100.0);
        assert!(flat.iter().all(|course| course.flat && course.samples == 100), "{flat:?}");
        let leaking = courses(&points(|n| 50 * MIB + n * MIB / 5 + (n % 7) * MIB), 100.0);
        assert!(!leaking[0].flat && (leaking[0].growth / MIB as f64 - 20.0).abs() < 2.0, "{leaking:?}");
        assert!(leaking[1].flat);
        // A process that was started late shows little of a leak; one without samples shows nothing.
        assert!(!courses(&points(|_| MIB), 199.0)[0].flat);
    }
}
