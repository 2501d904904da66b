from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.auditing.audit_target import Subject
from lastiterate.compare_analyses import Answer
from lastiterate.paper.reproduce import NAMES, find
from lastiterate.paper.reproduce import audited_figures as audits
from lastiterate.paper.reproduce.audited_figures import Audits, Case, empirical_fields, measure, subject_of


def test_full_scale_is_refused_without_data():
    takers = [name for name in NAMES if "data" in find(name).TAKES]
    assert takers == ["figure2", "figure4", "table2"]
    for name in takers:
        with pytest.raises(ValueError, match="data must be given at scale full"):
            find(name).rows("full")


def test_full_scale_is_refused_for_other_images():
    with pytest.raises(ValueError, match=r"shape \(32, 32, 3\)"):
        subject_of("full", Audits(data="digits"))


def test_full_scale_trains_the_papers_model(small_images):
    subject = subject_of("full", Audits(data=small_images))
    assert "wide-resnet" in subject.words
    assert subject.problem.examples[0].shape == (12, 32, 32, 3)
    assert type(subject.problem.parameters).__name__ == "WideResNet"
    assert audits.MODELS["full"] == 512


def test_quick_scale_takes_other_data(small_images):
    subject = subject_of("quick", Audits(data=small_images))
    assert subject.problem.examples[0].shape == (12, 32 * 32 * 3)


def test_a_row_is_what_its_audit_found(monkeypatch, tmp_path):
    run, asked = li.DPSGD(10, 0.1, 2.0), []

    def audit(*arguments, **options):
        seed = arguments[4]
        asked.append((arguments, options))
        predictions = {"last_iterate": Answer(2.0 + seed), "composition": Answer(None, "too slow")}
        estimates = {"last-iterate": SimpleNamespace(epsilon=1.5 + seed)}
        found = dict(signal=0.6, ideal_signal=2.0, accuracy=0.7, confidence=0.95, models=arguments[3])
        return SimpleNamespace(run=run, predictions=predictions, estimates=estimates, **found)

    monkeypatch.setattr(li, "audit", audit)
    subject = Subject(run, "digits", "some digits", "digits", test="held out")
    cases = [Case(run, attack, {"attack": name}) for name, attack in (("one", "first"), ("two", "second"))]
    monkeypatch.setattr(Subject, "experiment", lambda self, attack, models, seed: f"{attack}-{seed}")
    monkeypatch.setattr(Subject, "default_store", lambda self, experiment: Path(f"{experiment}.sqlite"))
    rows = measure("figure9", subject, cases, iter, Audits(store=tmp_path), models=7, quality="accuracy")
    assert [arguments[:6] for arguments, _ in asked] == [
        (run, "digits", "first", 7, 0, tmp_path / "figure9-first-0.sqlite"),
        (run, "digits", "second", 7, 1, tmp_path / "figure9-second-1.sqlite"),
    ]
    assert {name: asked[0][1][name] for name in ("delta", "confidence", "methods", "test")} == {
        "delta": 1e-5,
        "confidence": 0.95,
        "methods": ["last-iterate"],
        "test": "held out",
    }
    assert rows[1] == {
        "attack": "two",
        "sample_rate": 0.1,
        "steps": 10,
        "noise_multiplier": 2.0,
        "last_iterate": 3.0,
        "composition": None,
        "composition_reason": "too slow",
        "accuracy": 0.7,
        "empirical": 2.5,
        "confidence": 0.95,
        "models": 7,
        "signal": 0.6,
        "signal_fraction": pytest.approx(0.3),
    }


def test_an_infinite_epsilon_is_null_with_a_reason():
    row = empirical_fields(np.inf, 0.95, 7)
    assert row["empirical"] is None
    assert "noise" in row["empirical_reason"]
    assert empirical_fields(1.5, 0.95, 7) == {"empirical": 1.5, "confidence": 0.95, "models": 7}
