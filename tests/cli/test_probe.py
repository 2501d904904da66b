import pytest

import lastiterate as li
from lastiterate.cli.probe import STORIES, compare
from lastiterate.paper.counterexamples import NAMES, shift, zeroing
from tests.cli.conftest import Cli

RUN = "--steps 10 --sample-rate .3 --noise-multiplier 1 --delta 1e-3"
MODELS = {"zeroing": 2000, "quadratic": 200, "shift": 200, "malicious": 200}  # one step alone tells little
COMMANDS = {
    "zeroing": f"zeroing {RUN} --models 2000",
    "quadratic": f"quadratic {RUN} --models 200 --alpha .3",
    "shift": f"shift {RUN} --models 200 --growth 4",
    "malicious": f"malicious {RUN} --models 200 --seed 3 --confidence .9",
}
RUN_KEYS = ["name", "steps", "sample_rate", "noise_multiplier"]
FOUND_KEYS = ["last_iterate", "max_over_steps", "composition", "true_epsilon", "empirical", "confidence", "models"]
KEYS = {*RUN_KEYS, "delta", *FOUND_KEYS, "method", "cases", "rows"}


@pytest.fixture(scope="module", autouse=True)
def _few_growths():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shift, "_CURVE", (2.0, 10.0))
        patch.setattr(shift, "_AUDITED", ())
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("probe")


@pytest.fixture(scope="module")
def answers(store):
    """What each probe prints with --json."""
    return {name: Cli().json(f"probe {command} --store {store}") for name, command in COMMANDS.items()}


def plain(text):
    """Output for people, without the line breaks of its tables."""
    return " ".join(text.split())


def test_list_names_every_counterexample(cli):
    shown = cli("probe --list")
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in NAMES)
    rows = cli.json("probe --list")["rows"]
    assert [row["name"] for row in rows] == list(NAMES) == ["zeroing", "quadratic", "shift", "malicious"]
    assert all(row["title"] and len(row["story"]) > 100 for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_json_is_one_object_with_the_documented_keys(answers, name):
    answer = answers[name]
    assert answer.keys() >= KEYS
    assert [answer[key] for key in RUN_KEYS] == [name, 10, 0.3, 1.0]
    assert answer["delta"] == 1e-3
    assert answer["models"] == MODELS[name]
    assert answer["confidence"] == (0.9 if name == "malicious" else 0.95)
    last = answer["cases"][-1]
    assert [last[key] for key in ("exact", "empirical", "method")] == [
        answer[key] for key in ("true_epsilon", "empirical", "method")
    ]
    missing = [key for key, value in answer.items() if value is None]
    assert missing == (["region_first", "region_last", "lowest_steps"] if name == "zeroing" else [])
    assert all("never below its value for one step" in answer[f"{key}_reason"] for key in missing)
    assert 0.25 * answer["true_epsilon"] < answer["empirical"] <= answer["true_epsilon"] < answer["composition"]
    run = li.DPSGD(10, 0.3, 1.0)
    for analysis in (li.last_iterate, li.max_over_steps, li.composition):
        assert answer[analysis.__name__] == pytest.approx(analysis(run).epsilon(1e-3), rel=1e-9)


def test_json_alone_draws_nothing_and_scores_are_kept_in_runs(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli.json("probe zeroing --steps 3 --models 10")
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file.parent == tmp_path / "runs" / "probe"
    assert file.name.startswith("zeroing-")
    assert file.suffix == ".sqlite"


def test_worst_searches_and_trains_nothing(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lastiterate.training.Trainer", _unreachable)
    command = "probe quadratic --worst --steps 3 --sample-rate .1 --noise-multiplier 1 --delta 1e-6"
    answer = cli.json(command)
    assert [answer[key] for key in RUN_KEYS] == ["quadratic", 3, 0.1, 1.0]
    assert [row["family"] for row in answer["rows"]] == ["decay", "momentum and decay", "two levels", "any schedule"]
    for row in answer["rows"]:
        assert row["ratio"] == pytest.approx(row["epsilon"] / answer["max_over_steps"])
        assert len(row["weights"]) == 3
    assert answer["rows"][0]["ratio"] > 1.0
    shown = cli(command)
    assert shown.exit_code == 0
    assert "any schedule" in shown.stdout
    assert "heuristic" in plain(shown.stdout)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("options", "kept"), [("--store kept", "kept"), ("", "runs/probe")])
def test_ctrl_c_says_how_to_resume(stopped, options, kept):
    assert f"{kept}: the same command resumes" in stopped(f"probe zeroing {options}", zeroing, "probe")


def _unreachable(*arguments, **options):
    pytest.fail("a model was trained")


def test_every_counterexample_has_its_story():
    assert tuple(STORIES) == NAMES


def test_a_prediction_that_is_enough_is_not_called_too_low():
    assert compare(2.0, 2.0) == compare(1.0, 2.0) == "the example does not leak more"
    assert compare(2.5, 2.0) == "the example leaks 25% more"
    assert compare(5.0, 2.0) == "the example leaks 2.5 times as much"
    assert compare(1e5, 2.0) == "the example leaks 50,000 times as much"
