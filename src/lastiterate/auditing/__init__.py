"""Audits: trained models, their scores, and an empirical epsilon with a stated confidence."""
