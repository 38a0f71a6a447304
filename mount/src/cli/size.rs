//! Sizes and durations as people write them.

use std::time::Duration;

/// Longest duration that is taken: a year. Longer ones are typing errors.
const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// A size in bytes: a whole number with B, K, KB, KiB, M, … up to TiB; K is 1024 as KiB, KB is 1000.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 =
        number.parse().map_err(|_| format!("{text:?} is not a size; write it like 10GiB or 500MB"))?;
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        other => return Err(format!("{other:?} is no unit of size; use B, KiB, MiB, GiB or TiB")),
    };
    number.checked_mul(factor).ok_or_else(|| format!("{text} is too large"))
}

/// A duration: `1s`, `100ms`, `1m 30s`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text.trim())
        .map_err(|e| format!("{text:?} is not a duration ({e}); write it like 1s or 100ms"))?;
    if duration > DURATION_MAX { Err(format!("{text} is longer than a year")) } else { Ok(duration) }
}

/// An octal number, as `umask` takes it.
pub fn parse_octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text.trim_start_matches("0o"), 8) {
        Ok(bits) if bits <= 0o777 => Ok(bits),
        _ => Err(format!("{text:?} is no umask; write it like 022")),
    }
}

/// A size for people, three digits or so.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS.get(unit).copied().unwrap_or_default())
}

/// A duration in milliseconds for people.
pub fn show_ms(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{:.1} s", ms as f64 / 1000.0),
        _ => humantime::format_duration(Duration::from_secs(ms / 1000)).to_string(),
    }
}

/// A number of things for people.
pub fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}
