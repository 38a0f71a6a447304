//! Quantiles of small samples.

/// The value below which a share `share` (0 to 1) of the sorted sample lies; 0 for an empty one.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let index = (last as f64 * share).round() as usize;
    sorted[index.min(last)]
}

/// Sorts a sample of finite numbers.
#[must_use]
pub fn sorted(mut sample: Vec<f64>) -> Vec<f64> {
    sample.sort_by(f64::total_cmp);
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_known_samples() {
        let sample = sorted(vec![3.0, 1.0, 2.0, 5.0, 4.0]);
        assert_eq!([quantile(&sample, 0.5), quantile(&sample, 1.0), quantile(&[], 0.5)], [3.0, 5.0, 0.0]);
    }
}
