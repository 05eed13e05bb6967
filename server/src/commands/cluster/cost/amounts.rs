//! Amounts and quantities as text. Pure functions.

use crate::common::format;

/// Dollars and cents: `1,612.80`.
pub(super) fn cents(dollars: f64) -> String {
    let cents = (dollars.abs() * 100.0).round() as u64;
    let sign = if dollars < 0.0 && cents > 0 { "-" } else { "" };
    format!("{sign}{}.{:02}", format::count(cents / 100), cents % 100)
}

/// Whole dollars, rounded: `$1,746`.
pub(super) fn whole(dollars: f64) -> String {
    format!("${}", format::count(dollars.max(0.0).round() as u64))
}

/// A price as its file has it: `$0.00113`.
pub(super) fn price(dollars: f64) -> String {
    format!("${}", (dollars * 1e9).round() / 1e9)
}

/// A quantity: whole if it is whole or has four digits before the point, else with three digits after it at most.
pub(super) fn figure(n: f64) -> String {
    let rounded = n.round();
    if n >= 1000.0 || (n - rounded).abs() < 1e-9 {
        return format::count(rounded.max(0.0) as u64);
    }
    let text = if n < 0.01 { format!("{n:.6}") } else { format!("{n:.3}") };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// An amount for JSON, to the cent.
pub(super) fn to_cents(dollars: f64) -> f64 {
    (dollars * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_printed() {
        assert_eq!([cents(1612.8), cents(0.004), cents(-1.5)], ["1,612.80", "0.00", "-1.50"]);
        assert_eq!([whole(1745.95), whole(59.4)], ["$1,746", "$59"]);
        assert_eq!([price(0.00113), price(0.01 + 0.01), price(0.00003)], ["$0.00113", "$0.02", "$0.00003"]);
        assert_eq!(
            [figure(2_592_000.0), figure(112.0), figure(0.4471), figure(0.0)],
            ["2,592,000", "112", "0.447", "0"]
        );
        assert_eq!([figure(1234.5), figure(2.0 / 3.0), figure(0.00012)], ["1,235", "0.667", "0.00012"]);
        assert_eq!(to_cents(648.001), 648.0);
    }
}
