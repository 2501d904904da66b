from __future__ import annotations

import numpy as np
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
            for at in (0.01, 0.1)
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


def test_a_filter_may_be_a_file(cli, tmp_path):
    file = tmp_path / "filter.txt"
    file.write_text("1.0, -0.5\n-0.125 1e-3\n")
    assert cli.json(f"{RUN} --noise-filter {file}")["noise_filter"] == [1.0, -0.5, -0.125, 1e-3]
    assert "correlated noise (filter 1, -0.5, -0.125, 0.001)" in " ".join(
        cli(f"{RUN} --noise-filter {file}").stdout.split()
    )


def test_the_contracts_values(cli):
    answer = cli.json(RUN)
    assert answer["last_iterate"] == pytest.approx(1.27775588779, rel=1e-9)
    assert answer["composition"] == pytest.approx(1.828236667, rel=1e-6)


def test_batches_and_epochs_describe_the_same_run(cli):
    by_batch = cli.json("epsilon --dataset-size 50000 --batch-size 512 --epochs 60 --noise-multiplier .7 --delta 1e-5")
    run = li.DPSGD.from_batches(dataset_size=50_000, batch_size=512, epochs=60, noise_multiplier=0.7)
    assert (by_batch["steps"], by_batch["sample_rate"]) == (run.steps, run.sample_rate) == (5859, 0.01024)
    assert by_batch["last_iterate"] == li.last_iterate(run).epsilon(1e-5)


def test_weights_change_the_heuristic_as_in_the_paper(cli):
    answer = cli.json("epsilon --steps 3 --sample-rate 0.1 --noise-multiplier 1 --delta 1e-6 --weights 1,.5,.25")
    assert answer["last_iterate"] == pytest.approx(2.2749, abs=5e-5)
    assert answer["weights"] == [1.0, 0.5, 0.25]


def test_optimizer_options_make_an_sgd(cli):
    options = "--learning-rate .1 --momentum .9 --nesterov --weight-decay .01 --decoupled --averaging .99"
    answer = cli.json(f"epsilon --steps 50 --sample-rate .1 --noise-multiplier 1 --delta 1e-5 {options}")
    sgd = li.SGD(learning_rate=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, decoupled=True, averaging=0.99)
    run = li.DPSGD(50, 0.1, 1.0, optimizer=sgd)
    assert answer["last_iterate"] == li.last_iterate(run).epsilon(1e-5)
    assert answer["optimizer"]["momentum"] == 0.9
    assert answer["optimizer"]["averaging"] == 0.99


def test_per_step_numbers(cli):
    answer = cli.json("epsilon --steps 3 --sample-rate .1,.2,.3 --noise-multiplier 1,2,3 --delta 1e-5")
    run = li.DPSGD(3, np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0]))
    assert answer["sample_rate"] == [0.1, 0.2, 0.3]
    assert answer["last_iterate"] == li.last_iterate(run).epsilon(1e-5)


def test_what_is_printed_about_a_shuffled_run_can_be_typed(cli):
    options = "epsilon --steps 300 --noise-multiplier 10 --delta 1e-5 --sampling shuffled"
    answer = cli.json(f"{options} --sample-rate 1/3")
    assert (answer["sample_rate"], answer["batches_per_epoch"], answer["neighbours"]) == (1 / 3, 3, "zero-out")
    shown = " ".join(cli(f"{options} --sample-rate 1/3").stdout.split())
    assert "sample rate 1/3, noise multiplier 10, shuffled batches, 3 batches per epoch" in shown
    assert "one example replaced by one without gradient (zero-out); delta" in shown
    assert "write 1/3" in cli.refusal(f"{options} --sample-rate 0.3333")
    assert "--sample-rate must be a finite number" in cli.refusal(f"{options} --sample-rate 1/0")
    assert cli.json(f"{options} --sample-rate 3/10 --batches-per-epoch 4")["batches_per_epoch"] == 4
    assert "got 'add-remove'" in cli.refusal(f"{options} --sample-rate 1/3 --neighbours add-remove")
    sizes = "epsilon --steps 12 --dataset-size 20 --batch-size 6 --noise-multiplier 1 --delta 1e-5 --sampling shuffled"
    assert "last_batch must be 'keep' or 'drop'" in cli.refusal(sizes)
    assert cli.json(f"{sizes} --last-batch keep")["batches_per_epoch"] == 4


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


def test_full_batches_need_no_sample_rate(cli):
    answer = cli.json("epsilon --steps 10 --sampling full --noise-multiplier 5 --delta 1e-5")
    assert answer["sample_rate"] == 1.0
    assert answer["last_iterate"] == pytest.approx(answer["full_batch"])


def test_infinite_epsilon_is_null_with_a_reason(cli, monkeypatch):
    monkeypatch.setattr("lastiterate.privacy.curve.PrivacyCurve.epsilon", lambda self, delta: float("inf"))
    answer = cli.json(RUN)
    assert answer["last_iterate"] is None
    assert "larger than a floating-point number" in answer["last_iterate_reason"]


def test_maximum_over_steps_is_left_out_where_it_takes_long(cli):
    answer = cli.json(f"{RUN.replace('1000', '1001')} --momentum .9")
    assert answer["max_over_steps"] is None
    assert "takes long" in answer["max_over_steps_reason"]


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


def test_table_says_when_an_earlier_model_leaks_more(cli):
    early = cli("epsilon --steps 30 --sample-rate .01 --noise-multiplier .5 --delta 1e-6").stdout
    assert "can leak more" in early
    assert "up to 4.29." in early
    assert "can leak more" not in cli(RUN).stdout


def test_delta_command_answers_deltas(cli):
    answer = cli.json("delta --steps 1000 --sample-rate 0.01 --noise-multiplier 1 --epsilon 1")
    run = li.DPSGD(1000, 0.01, 1.0)
    assert answer["epsilon"] == 1.0
    for name in ("last_iterate", "composition", "full_batch", "max_over_steps"):
        assert answer[name] == getattr(li, name)(run).delta(1.0)
    table = cli("delta --steps 1000 --sample-rate 0.01 --noise-multiplier 1 --epsilon 1").stdout
    assert "delta" in table
    assert "heuristic" in table


def test_the_sentence_stands_in_the_place_of_the_table_and_is_a_key_of_json(cli):
    words = li.sentence(li.DPSGD(1000, 0.01, 1.0, group_size=2), 1e-5)
    assert " ".join(cli(f"{RUN} --group-size 2 --sentence").stdout.split()) == words
    answer = cli.json(f"{RUN} --group-size 2 --sentence")
    assert answer.pop("sentence") == words
    assert answer == cli.json(f"{RUN} --group-size 2")


@pytest.mark.parametrize(("last_batch", "steps", "rate"), [("keep", 5880, 0.01024), ("drop", 5820, 1 / 97)])
def test_a_smaller_last_batch_is_kept_or_dropped(cli, last_batch, steps, rate):
    sizes = f"--dataset-size 50000 --batch-size 512 --last-batch {last_batch} --noise-multiplier .7 --delta 1e-5"
    for how_long in ("--epochs 60", f"--steps {steps}"):
        answer = cli.json(f"epsilon {sizes} {how_long}")
        assert (answer["steps"], answer["sample_rate"]) == (steps, rate)


def test_sizes_and_steps_describe_a_run_too(cli):
    answer = cli.json("epsilon --dataset-size 50000 --batch-size 512 --steps 10 --noise-multiplier .7 --delta 1e-5")
    assert (answer["steps"], answer["sample_rate"]) == (10, 0.01024)
