import numpy as np
import pytest

from lastiterate.paper.reproduce import NAMES, find
from lastiterate.paper.reproduce import audited_figures as audits
from lastiterate.paper.reproduce.audited_figures import Audits, empirical_fields, subject_of


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


def test_an_infinite_epsilon_is_null_with_a_reason():
    row = empirical_fields(np.inf, 0.95, 7)
    assert row["empirical"] is None
    assert "noise" in row["empirical_reason"]
    assert empirical_fields(1.5, 0.95, 7) == {"empirical": 1.5, "confidence": 0.95, "models": 7}
