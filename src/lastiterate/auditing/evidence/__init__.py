"""From scores to what they show: rates, families, thresholds, estimates, verdicts, and the report of an audit."""
