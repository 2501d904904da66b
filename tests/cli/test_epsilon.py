import pytest

import lastiterate as li
from lastiterate.citation import risk_sentences

RUN = "epsilon --steps 1000 --sample-rate 0.01 --noise-multiplier 1 --delta 1e-5"


def test_json_holds_the_run_and_the_analyses_of_python(cli):
    run = li.DPSGD(steps=1000, sample_rate=0.01, noise_multiplier=1.0)
    assert cli.json(RUN) == {
        "steps": 1000,
        "sample_rate": 0.01,
        "noise_multiplier": 1.0,
        "sampling": "poisson",
        "delta": 1e-5,
        "last_iterate": li.last_iterate(run).epsilon(1e-5),
        "composition": li.composition(run).epsilon(1e-5),
        "full_batch": li.full_batch(run).epsilon(1e-5),
        "max_over_steps": li.max_over_steps(run).epsilon(1e-5),
        "risk": [
            {
                "baseline": each,
                "guarantee": li.composition(run).risk(each),
                "prediction": li.last_iterate(run).risk(each),
            }
            for each in (0.01, 0.1)
        ],
    }
    assert list(cli.json(RUN))[5:7] == ["composition", "last_iterate"]
    mu = {"smallest_error": 1e-10, "guarantee": li.composition(run).mu(), "prediction": li.last_iterate(run).mu()}
    assert cli.json(f"{RUN} --details")["mu"] == mu


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ("--releases 10", {"releases": 10}),
        ("--releases 100,400,1000", {"releases": [100, 400, 1000]}),
        ("--group-size 4", {"group_size": 4}),
        ("--neighbours replace", {"neighbours": "replace"}),
        ("--noise-filter 1,-.5,-.125", {"noise_filter": [1.0, -0.5, -0.125]}),
        ("--noise-filter 2", {"noise_filter": [2.0]}),
        ("--noise-filter 1,-.5 --min-separation 50", {"noise_filter": [1.0, -0.5], "min_separation": 50}),
    ],
)
def test_releases_groups_neighbours_and_filters_are_options_and_fields_of_json(cli, options, fields):
    run = li.DPSGD(1000, 0.01, 1.0, **fields)
    answer = cli.json(f"{RUN} {options}")
    assert {name: answer[name] for name in fields} == fields
    assert answer["last_iterate"] == li.last_iterate(run).epsilon(1e-5)
    assert answer["composition"] == li.composition(run).epsilon(1e-5)


@pytest.mark.parametrize("sampling", ["shuffled", "fixed"])
def test_composition_is_null_with_a_reason_where_it_is_not_valid(cli, sampling):
    answer = cli.json(f"{RUN} --sampling {sampling}")
    assert answer["composition"] is None
    assert "no_amplification" in answer["composition_reason"]
    assert answer["last_iterate"] == li.last_iterate(li.DPSGD(1000, 0.01, 1.0, sampling=sampling)).epsilon(1e-5)
    table = cli(f"{RUN} --sampling {sampling} --details")
    assert table.exit_code == 0
    assert "none" in table.stdout
    assert "guaranteed  epsilon" in table.stdout
    assert "no amplification" in " ".join(table.stdout.split())


def test_the_answer_has_the_guarantee_then_the_prediction_then_the_risk(cli):
    result = cli(RUN)
    lines = result.stdout.splitlines()
    assert lines[2:5] == [
        "guaranteed  epsilon 1.83 for every attack, even one that sees every step",
        "predicted   epsilon 1.28 from the final model alone; a heuristic, no promise",
        "",
    ]
    assert " ".join(lines[5:]) == " ".join(risk_sentences(li.DPSGD(1000, 0.01, 1.0)))
    assert max(map(len, lines)) <= 80
    assert "full batch" not in result.stdout


def test_details_have_mu_with_its_range_and_all_analyses_with_their_assumptions(cli):
    result = cli(f"{RUN} --details")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    rows = [line for line in result.stdout.splitlines() if line.startswith(("last", "composition", "full"))]
    assert [row.split()[0] for row in rows] == ["composition", "last", "full"]
    assert "(heuristic)" in rows[1]
    assert "1.2778" in rows[1]
    assert "Mu of Gaussian DP, where both error rates are at least 1e-10: 0.523 (predicted: 0.348)." in " ".join(
        result.stdout.split()
    )
    assert "predicts, does not guarantee" in " ".join(result.stdout.split())
    assert all(line == line.rstrip() for line in result.stdout.splitlines())


def test_the_sentence_stands_in_the_place_of_the_table_and_is_a_key_of_json(cli):
    words = li.sentence(li.DPSGD(1000, 0.01, 1.0, group_size=2), 1e-5)
    assert " ".join(cli(f"{RUN} --group-size 2 --sentence").stdout.split()) == words
    answer = cli.json(f"{RUN} --group-size 2 --sentence")
    assert answer.pop("sentence") == words
    assert answer == cli.json(f"{RUN} --group-size 2")


ADAM_RUN = "--steps 100 --sample-rate .1 --noise-multiplier 1"
WHAT = "approximation of a heuristic"


def test_epsilon_and_delta_predict_for_adam_and_say_what_that_is(cli):
    run = li.DPSGD(100, 0.1, 1.0, optimizer=li.Adam(0.01, 0.8, 0.99, 1e-6, 0.5))
    options = "--optimizer adam --learning-rate .01 --beta1 .8 --beta2 .99 --eps 1e-6 --weight-decay .5"
    found = cli.json(f"epsilon {ADAM_RUN} --delta 1e-5 {options} --sentence")
    assert found["last_iterate"] == pytest.approx(li.last_iterate(run).epsilon(1e-5))
    assert found["prediction"] == f"an {WHAT}"
    assert found["optimizer"] == {"name": "adam", **vars(run.optimizer)}
    assert WHAT in found["sentence"]
    assert cli.json(f"delta {ADAM_RUN} --epsilon 1 {options}")["prediction"] == f"an {WHAT}"
    for command in (f"epsilon {ADAM_RUN} --delta 1e-5 {options}", f"delta {ADAM_RUN} --epsilon 1 {options}"):
        assert WHAT in " ".join(cli(command).output.split())


@pytest.mark.parametrize("analysis", ["last-iterate", "composition", "full-batch"])
def test_noise_reaches_the_target_under_the_chosen_analysis(cli, analysis):
    answer = cli.json(f"calibrate --steps 1000 --sample-rate 0.01 --epsilon 2 --delta 1e-5 --analysis {analysis}")
    name = analysis.replace("-", "_")
    assert answer["analysis"] == name
    assert (answer["epsilon"], answer["delta"]) == (2.0, 1e-5)
    assert 2.0 - 2e-6 <= answer[name] <= 2.0
    run = li.DPSGD(1000, 0.01, answer["noise_multiplier"])
    for each in ("last_iterate", "composition", "full_batch"):
        assert answer[each] == getattr(li, each)(run).epsilon(1e-5)


CALIBRATE_RUN = "calibrate --steps 1000 --sample-rate 0.01 --epsilon 8 --delta 1e-5"


def test_without_an_analysis_the_guarantee_comes_first_and_the_heuristic_beside_it(cli):
    answer = cli.json(CALIBRATE_RUN)
    assert "noise_multiplier" not in answer
    assert (answer["steps"], answer["epsilon"], answer["delta"]) == (1000, 8.0, 1e-5)
    guarantee, heuristic = answer["rows"]
    assert (guarantee["analysis"], guarantee["is_guarantee"]) == ("composition", True)
    assert (heuristic["analysis"], heuristic["is_guarantee"]) == ("last_iterate", False)
    assert guarantee["noise_multiplier"] == pytest.approx(0.58626, abs=1e-5)
    assert heuristic["noise_multiplier"] == pytest.approx(0.24381, abs=1e-5)
    assert heuristic["composition"] == pytest.approx(130.935, abs=1e-3)
    for row in answer["rows"]:
        run = li.DPSGD(1000, 0.01, row["noise_multiplier"])
        assert 8.0 - 1e-5 <= row[row["analysis"]] <= 8.0
        assert getattr(li, row["analysis"])(run).is_guarantee == row["is_guarantee"]
        for each in ("last_iterate", "composition", "full_batch"):
            assert row[each] == getattr(li, each)(run).epsilon(1e-5)
