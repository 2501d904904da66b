"""The paper's own parts: its counterexamples, figures and tables."""
