//! Numbers, times and bytes as people write and read them. Pure functions.

use chiplog::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use std::fmt::Write as _;
use std::time::Duration;

/// `1234567` as `1,234,567`.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count with its noun: `1 record`, `2,000 records`.
pub(crate) fn many(n: u64, one: &str, more: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{} {more}", count(n)) }
}

/// Bytes in binary units with three digits or more: `512 B`, `64.0 MiB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `n` in `time`, as a rate per second.
pub(crate) fn rate(n: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { n as f64 / seconds } else { 0.0 }
}

/// A rate per second as text: `12,345`, `3.2`.
pub(crate) fn per_second(rate: f64) -> String {
    if rate >= 100.0 { count(rate.round() as u64) } else { format!("{rate:.1}") }
}

/// A duration with a fitting unit: `85 µs`, `1.25 ms`, `3.2 s`, `2 min 5 s`.
pub(crate) fn duration(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        m if m < 1000.0 => format!("{m:.0} µs"),
        m if m < 1e6 => format!("{:.2} ms", m / 1e3),
        m if m < 120e6 => format!("{:.1} s", m / 1e6),
        m => format!("{} min {:.0} s", (m / 60e6) as u64, (m / 1e6) % 60.0),
    }
}

/// Lays rows out in columns, each as wide as its widest cell, two spaces apart. The first row is the head.
pub(crate) fn table<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.first().map_or(0, |head| head.as_ref().len());
    let width = |n: usize| rows.iter().map(|row| row.as_ref()[n].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.as_ref().iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}", w = *w)).collect();
        _ = writeln!(out, "{}", cells.join("  ").trim_end());
    }
    out
}

/// A timestamp as RFC 3339 in UTC, to the millisecond. A time beyond the year 9999 stays a number.
pub(crate) fn time(timestamp: Timestamp) -> String {
    let millis = timestamp.get();
    match i64::try_from(millis).map(jiff::Timestamp::from_millisecond) {
        Ok(Ok(time)) => format!("{time:.3}"),
        _ => format!("{millis} ms"),
    }
}

/// Parses a point in time: milliseconds since 1970, RFC 3339 (`2026-01-31T12:00:00Z`, `+02:00`), a date (its
/// midnight UTC), or a span before `now` (`90s`, `15m`, `2h`, `7d`).
pub(crate) fn parse_time(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    const FORMS: &str = "give RFC 3339 (2026-01-31T12:00:00Z), a date (2026-01-31), milliseconds since 1970, or a span ago (90s, 15m, 2h, 7d)";
    let wrong = || format!("{text:?} is not a point in time: {FORMS}");
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().map(Timestamp).map_err(|_| wrong());
    }
    if let Some(seconds) = span_with_unit(text) {
        return Ok(Timestamp(now.get().saturating_sub(seconds.saturating_mul(1000))));
    }
    date_or_time(text).ok_or_else(wrong)
}

/// The seconds of a span with a unit, such as `15m`. A span too large for a `u64` becomes the largest number.
fn span_with_unit(text: &str) -> Option<u64> {
    let (n, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let (_, seconds) = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)].into_iter().find(|u| u.0 == unit)?;
    n.parse::<u64>().ok().map(|n| n.saturating_mul(seconds))
}

/// Parses a span in seconds: a number, or one with a unit (`90s`, `15m`, `24h`, `7d`).
pub(crate) fn parse_seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().or_else(|| span_with_unit(text));
    seconds.ok_or_else(|| format!("{text:?} is not a span of time: give seconds, or 90s, 15m, 24h, 7d"))
}

/// A span in the largest unit of which it is a whole number: `7 days`, `24 h`, `90 s`.
pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        s if s >= 2 * 86_400 && s.is_multiple_of(86_400) => format!("{} days", count(s / 86_400)),
        s if s >= 3600 && s.is_multiple_of(3600) => format!("{} h", s / 3600),
        s if s >= 120 && s.is_multiple_of(60) => format!("{} min", count(s / 60)),
        s => format!("{} s", count(s)),
    }
}

/// A date, as its midnight UTC, or RFC 3339.
fn date_or_time(text: &str) -> Option<Timestamp> {
    let time = match text.len() {
        10 => TimeZone::UTC.to_timestamp(text.parse::<Date>().ok()?.into()).ok()?,
        _ => text.parse::<jiff::Timestamp>().ok()?,
    };
    u64::try_from(time.as_millisecond()).ok().map(Timestamp)
}

/// Parses a size: `65536`, `64KiB`, `64K`, `1.5GiB`, `10MB` (decimal).
///
/// Not by the crate bytesize (2.7): its `64K` is 64,000, it rounds a size beyond 2^64 down to that instead of refusing it,
/// and it prints 1,048,575 bytes as `1024.0 KiB`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim().to_ascii_lowercase());
    let binary = |power: u32| 1024u64.pow(power);
    let factor = match unit.as_str() {
        "" | "b" => 1,
        "k" | "kib" => binary(1),
        "m" | "mib" => binary(2),
        "g" | "gib" => binary(3),
        "t" | "tib" => binary(4),
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("{text:?} is not a size: write 64MiB, 1GiB, 65536")),
    };
    let whole = number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor));
    let value = whole.or_else(|| {
        let value = number.parse::<f64>().ok()? * factor as f64;
        (value.is_finite() && value < 1.8e19).then_some(value as u64)
    });
    value.ok_or_else(|| format!("{text:?} is not a size: write 64MiB, 1GiB, 65536"))
}

/// Bytes as text on one line: printable ASCII and valid UTF-8 as they are, the rest escaped.
pub(crate) fn escape(data: &[u8]) -> String {
    let mut out = String::with_capacity(data.len());
    for chunk in data.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\\' => out.push_str("\\\\"),
                c if c.is_control() => _ = write!(out, "\\u{{{:x}}}", u32::from(c)),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_parsed_and_printed() {
        for (text, seconds, shown) in [
            ("604800", 604_800, "7 days"),
            ("7d", 604_800, "7 days"),
            ("24h", 86_400, "24 h"),
            ("15m", 900, "15 min"),
            ("90s", 90, "90 s"),
            ("0", 0, "0 s"),
        ] {
            assert_eq!(parse_seconds(text), Ok(seconds));
            assert_eq!(span(seconds), shown);
        }
        for wrong in ["", "d", "7 d", "7w", "-1", "1.5h"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_are_printed() {
        assert_eq!([count(0), count(999), count(1000), count(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(many(1, "record", "records"), "1 record");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!([bytes(1024), bytes(64 << 20), bytes((1 << 20) - 1)], ["1.0 KiB", "64.0 MiB", "1.0 MiB"]);
        assert_eq!(duration(Duration::from_micros(85)), "85 µs");
        assert_eq!(duration(Duration::from_micros(1250)), "1.25 ms");
        assert_eq!(duration(Duration::from_secs(125)), "2 min 5 s");
    }

    #[test]
    fn table_aligns_columns() {
        let rows = [["A", "LONG"], ["long", "b"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "A     LONG\nlong  b\n");
    }

    #[test]
    fn printed_times_parse_to_the_same_value() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
            (4_102_444_800_000, "2100-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(time(Timestamp(millis)), text);
            assert_eq!(parse_time(text, Timestamp(0)), Ok(Timestamp(millis)));
        }
        assert_eq!(time(Timestamp(u64::MAX)), "18446744073709551615 ms");
    }

    #[test]
    fn times_parse_in_every_form_and_wrong_ones_fail() {
        let now = Timestamp(1_000_000_000);
        for (text, millis) in [
            ("1700000000123", 1_700_000_000_123),
            ("2023-11-14", 1_699_920_000_000),
            ("2023-11-14T22:13:20+02:00", 1_699_992_800_000),
            ("2023-11-14 22:13:20.5Z", 1_700_000_000_500),
            ("2023-11-14t22:13:20.1239-0730", 1_700_027_000_123),
            ("90s", 1_000_000_000 - 90_000),
            ("2h", 1_000_000_000 - 7_200_000),
        ] {
            assert_eq!(parse_time(text, now), Ok(Timestamp(millis)), "{text}");
        }
        for text in [
            "",
            "soon",
            "2023-02-30",
            "2023-13-01",
            "2023-11-14T25:00:00Z",
            "2023-11-14T22:13:20",
            "1969-12-31",
            "-1",
            "1é",
        ] {
            assert!(parse_time(text, now).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in
            [("65536", 65536), ("64 KiB", 65536), ("64k", 65536), ("1.5G", 3 << 29), ("10MB", 10_000_000)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        for text in ["", "MiB", "1X", "-1", "99999999999999999999", "99999999TiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_are_printed() {
        assert_eq!(escape(b"a\n\\\xff\x00\xc3\xa9"), "a\\n\\\\\\xff\\u{0}é");
    }
}
