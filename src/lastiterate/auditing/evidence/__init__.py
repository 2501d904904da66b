"""Statistics of audit scores: error rates, families, thresholds, estimates, power, verdicts, and reports."""
