"""Adam on the command line: every command that describes a run knows it, and calls its prediction what it is."""

import json

import pytest

import lastiterate as li

RUN = "--steps 100 --sample-rate .1 --noise-multiplier 1"
WHAT = "approximation of a heuristic"


def test_epsilon_and_delta_predict_for_adam_and_say_what_that_is(cli):
    run = li.DPSGD(100, 0.1, 1.0, optimizer=li.Adam(0.01, 0.8, 0.99, 1e-6, 0.5))
    options = "--optimizer adam --learning-rate .01 --beta1 .8 --beta2 .99 --eps 1e-6 --weight-decay .5"
    found = cli.json(f"epsilon {RUN} --delta 1e-5 {options} --sentence")
    assert found["last_iterate"] == pytest.approx(li.last_iterate(run).epsilon(1e-5))
    assert found["prediction"] == f"an {WHAT}"
    assert found["optimizer"] == {"name": "adam", **vars(run.optimizer)}
    assert WHAT in found["sentence"]
    assert cli.json(f"delta {RUN} --epsilon 1 {options}")["prediction"] == f"an {WHAT}"
    for command in (f"epsilon {RUN} --delta 1e-5 {options}", f"delta {RUN} --epsilon 1 {options}"):
        assert WHAT in " ".join(cli(command).output.split())


def test_an_audit_trains_with_adam_reports_its_second_moment_and_keeps_it(cli, tmp_path):
    store = tmp_path / "adam.sqlite"
    run = "--steps 5 --sample-rate .1 --noise-multiplier 1 --optimizer adamw --learning-rate .01"
    audit = f"audit --model logistic {run} --models 8 --method gdp --store {store}"
    found = cli.json(audit)
    assert found["optimizer"]["name"] == "adamw"
    assert found["prediction"] == f"an {WHAT}"
    assert 0.0 < found["second_moment"]["noise_share"] < 1.1
    assert any("Adam's second moment" in caveat for caveat in found["caveats"])
    again = cli.json(f"report {store} --method gdp")
    assert again["second_moment"] == found["second_moment"]
    assert again["optimizer"] == found["optimizer"]
    assert WHAT in " ".join(cli(f"report {store} --method gdp").output.split())
    assert json.dumps(again)
