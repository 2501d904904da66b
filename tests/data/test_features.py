"""Features: vectors of any scale with a public bound on their norm, in uint8 or in float32."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate import data, training
from lastiterate.attacks import GradientSpace, InputSpace
from lastiterate.auditing.identity import fingerprint
from lastiterate.data import Dataset
from lastiterate.training import problems
from lastiterate.training.models import accuracy
from lastiterate.training.problems import feature_norms
from tests.data.writers import arrays

GENERATOR = np.random.default_rng(0)
LABELS = np.repeat(np.arange(3), 40)
FEATURES = (5.0 * np.eye(3)[LABELS] @ GENERATOR.standard_normal((3, 8)) + GENERATOR.standard_normal((120, 8))) * 3.0
RUN = li.DPSGD(30, 0.2, 1.0, optimizer=li.SGD(0.02, momentum=0.9))


def features(x=FEATURES, norm=20.0, **more):
    return Dataset.from_arrays("some", x, LABELS, x, LABELS, feature_norm=norm, **more)


def test_features_beyond_the_bound_are_scaled_down_and_others_stay():
    found = features(norm=15.0).x_train
    norms = np.linalg.norm(FEATURES, axis=1)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), np.minimum(norms, 15.0), rtol=1e-6)
    assert (norms > 15.0).any()
    np.testing.assert_array_equal(found[norms <= 15.0], FEATURES[norms <= 15.0].astype(np.float32))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_models_see_features_of_norm_at_most_one(dtype):
    x = GENERATOR.integers(0, 256, (120, 8)).astype(dtype)
    given = features(x, norm=400.0 if dtype is np.float32 else 400.0 / 255.0)
    problem = problems.logistic(given)
    assert problem.examples[0].dtype == dtype
    norms = np.minimum(np.linalg.norm(x.astype(float), axis=1) / 400.0, 1.0)
    np.testing.assert_allclose(feature_norms(problem), norms, atol=1e-2)  # bytes are rounded down
    clipped = li.DPSGD(10, 0.1, 1.0, clip_norm=2.1, optimizer=li.SGD(0.01, weight_decay=0.1))
    assert li.contraction_of(problem, clipped, feature_norm=1.0).value < 1.0


@pytest.mark.parametrize("model", [problems.logistic, problems.least_squares, problems.mlp])
def test_classifiers_learn_from_features(model):
    given = features()
    problem = model(given)
    trained = training.train(RUN.replace(noise_multiplier=0.1), problem, models=1, progress=False)
    assert accuracy(trained.model(0), given.x_test, given.y_test) > 0.9


@pytest.mark.parametrize("attack", [InputSpace("clipbkd", pilots=2), GradientSpace(references=2)])
def test_attacks_on_bytes(attack):
    x = np.clip(np.abs(FEATURES) * 8.0, 0.0, 255.0).astype(np.uint8)
    result = li.audit(RUN, problems.logistic(features(x, norm=2.0)), attack, models=4, threshold=1.0)
    assert np.isfinite(result.scores_in).all()
    assert np.isfinite(result.scores_out).all()


def test_the_bound_is_part_of_an_audits_identity():
    one, two = (problems.logistic(features(FEATURES / 9.0, norm=norm)) for norm in (20.0, 21.0))
    assert fingerprint(one) != fingerprint(two)


@pytest.mark.parametrize(
    ("x", "norm", "message"),
    [
        (FEATURES, None, "feature_norm must be given for features, as in x_train of shape"),
        (FEATURES, 0.0, "feature_norm must be"),
        (FEATURES * np.nan, 1.0, "x_train must be finite"),
        (FEATURES.reshape(120, 2, 2, 2), 1.0, "x_train must be numbers of shape"),
        (FEATURES.astype(str), 1.0, "x_train must be numbers of shape"),
    ],
)
def test_what_is_no_feature_is_refused(x, norm, message):
    with pytest.raises(ValueError, match=message):
        features(x, norm)


def test_images_are_refused_where_features_are_meant_and_the_other_way_round(tmp_path):
    np.savez(tmp_path / "images.npz", **arrays())
    with pytest.raises(ValueError, match="x_train must be numbers of shape"):
        data.load(tmp_path / "images.npz", 1.0)
    with pytest.raises(ValueError, match="feature_norm is for features"):
        data.load("digits", 1.0)
    with pytest.raises(ValueError, match="feature_norm must be"):
        data.load_npz("nowhere.npz", 0.0)
    with pytest.raises(ValueError, match="model must be mlp, logistic or ridge"):
        problems.cnn(features())
