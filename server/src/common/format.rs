//! Numbers, times and bytes as people write and read them. Pure functions.

use chiplog::Timestamp;
use chiplog_net::wire::dates::date_of;
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

/// Days since 1970 of a date of the proleptic Gregorian calendar; the inverse of [`date_of`]. After Howard
/// Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in March, so that the leap day is the
/// last one.
fn days_of(year: i64, month: u32, day: u32) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = i64::from((153 * ((month + 9) % 12) + 2) / 5 + day - 1);
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// A timestamp as RFC 3339 in UTC, to the millisecond. A time beyond the year 9999 stays a number.
pub(crate) fn time(timestamp: Timestamp) -> String {
    let millis = timestamp.get();
    let (seconds, millis) = (millis / 1000, millis % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    if days > 2_932_896 {
        return format!("{} ms", timestamp.get());
    }
    let (year, month, day) = date_of(days as i64);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
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
    rfc3339(text).ok_or_else(wrong)
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

/// `YYYY-MM-DD` with or without `THH:MM:SS[.fraction](Z|+HH:MM)`.
fn rfc3339(text: &str) -> Option<Timestamp> {
    let number = |from: usize, to: usize| -> Option<u32> {
        let part = text.get(from..to)?;
        part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok()).flatten()
    };
    let at = |i: usize| text.as_bytes().get(i).copied();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    if at(4) != Some(b'-') || at(7) != Some(b'-') || !(1..=12).contains(&month) {
        return None;
    }
    let days = days_of(i64::from(year), month, day);
    if date_of(days) != (i64::from(year), month, day) {
        return None; // no such day
    }
    let mut millis = days * 86_400_000;
    if text.len() > 10 {
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let form = matches!(at(10), Some(b'T' | b't' | b' ')) && at(13) == Some(b':') && at(16) == Some(b':');
        if !form || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        millis += i64::from(hour * 3600 + minute * 60 + second) * 1000;
        let mut rest = text.get(19..)?;
        if let Some(fraction) = rest.strip_prefix('.') {
            let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
            let padded = format!("{:0<3}", &fraction[..digits]);
            millis += padded[..3].parse::<i64>().ok().filter(|_| digits > 0)?;
            rest = &fraction[digits..];
        }
        millis -= offset_minutes(rest)? * 60_000;
    }
    u64::try_from(millis).ok().map(Timestamp)
}

/// `Z`, `+02:00`, `-0730`.
fn offset_minutes(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let digits: String = zone[1..].chars().filter(|c| *c != ':').collect();
    if digits.len() != 4 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let (hours, minutes): (i64, i64) = (digits[..2].parse().ok()?, digits[2..].parse().ok()?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

/// Parses a size: `65536`, `64KiB`, `64K`, `1.5GiB`, `10MB` (decimal).
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

/// Bytes as hexadecimal digits.
pub(crate) fn hex(data: &[u8]) -> String {
    data.iter().fold(String::with_capacity(data.len() * 2), |mut out, byte| {
        _ = write!(out, "{byte:02x}");
        out
    })
}

/// Bytes in base64 with padding (RFC 4648, section 4).
pub(crate) fn base64(data: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(data.len().div_ceil(3) * 4);
    for three in data.chunks(3) {
        let word = three.iter().fold(0u32, |w, b| w << 8 | u32::from(*b)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let six = (word >> (18 - 6 * digit)) as usize & 63;
            out.push(if digit <= three.len() { char::from(DIGITS[six]) } else { '=' });
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
        for days in (-800_000i64..800_000).step_by(317) {
            let (y, m, d) = date_of(days);
            assert_eq!(days_of(y, m, d), days);
        }
    }

    #[test]
    fn times_parse_in_every_form_and_wrong_ones_fail() {
        let now = Timestamp(1_000_000_000);
        for (text, millis) in [
            ("1700000000123", 1_700_000_000_123),
            ("2023-11-14", 1_699_920_000_000),
            ("2023-11-14T22:13:20+02:00", 1_699_992_800_000),
            ("2023-11-14 22:13:20.5Z", 1_700_000_000_500),
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
            "-1",
            "1é",
        ] {
            assert!(parse_time(text, now).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in
            [("65536", 65536), ("64KiB", 65536), ("64k", 65536), ("1.5G", 3 << 29), ("10MB", 10_000_000)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        for text in ["", "MiB", "1X", "-1", "99999999999999999999"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_are_printed() {
        assert_eq!(escape(b"a\n\\\xff\x00\xc3\xa9"), "a\\n\\\\\\xff\\u{0}é");
        assert_eq!(hex(b"\x00\xff"), "00ff");
        // RFC 4648, section 10
        for (plain, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }
}
