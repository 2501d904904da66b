"""Shared by all tests: hypothesis draws the same examples every time, however slow the machine."""

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "lastiterate",
    deadline=None,
    derandomize=True,
    max_examples=60,
    phases=[Phase.explicit, Phase.generate],  # a failing example is small enough as it is, and shrinking slow
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lastiterate")
