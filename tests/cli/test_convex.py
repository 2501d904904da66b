"""The guarantee for convex losses on the command line: answers, plans, sentences, pictures and audits."""

from __future__ import annotations

import json

import lastiterate as li

RUN = "--steps 20 --sample-rate 0.1 --noise-multiplier 1"
TRAINED = f"{RUN} --learning-rate 0.1 --weight-decay 2 --momentum 0 --models 4"
CURVE = li.convex(li.DPSGD(20, 0.1, 1.0), contraction=0.8)


def test_epsilon_and_delta_have_it_and_say_what_was_given(cli):
    answer = cli.json(f"epsilon {RUN} --delta 1e-5 --convex 0.8 --sentence")
    assert (answer["contraction"], answer["convex"]) == (0.8, CURVE.epsilon(1e-5))
    assert answer["last_iterate"] < answer["convex"] < answer["composition"]
    assert "on the condition that losses are convex" in answer["sentence"]
    inside = cli.json(f"delta {RUN} --epsilon 1 --diameter 0.1 --learning-rate 0.1")
    assert inside["diameter"] == 0.1
    assert inside["convex"] <= inside["composition"]
    assert "contraction" not in inside


def test_plan_has_the_noise_for_it(cli):
    answer = cli.json("plan --dataset-size 100 --epochs 2 --batch-sizes 10 --epsilon 2 --delta 1e-5 --convex 0.8")
    noise = {row["analysis"]: row["noise_multiplier"] for row in answer["rows"]}
    assert answer["contraction"] == 0.8
    assert noise["last_iterate"] < noise["convex"] <= noise["composition"]


def test_audit_and_report_show_it(cli, tmp_path):
    store = tmp_path / "audit.sqlite"
    asked = f"--method clopper-pearson --store {store} --convex 0.8"
    answer = cli.json(f"audit --attack adversarial {TRAINED} {asked}")
    assert (answer["contraction"], answer["convex"]) == (0.8, CURVE.epsilon(1e-5))
    told = cli(f"report {store} --method clopper-pearson --convex 0.8")
    assert "convex" in told.stdout
    assert "convex" not in json.dumps(cli.json(f"report {store} --method clopper-pearson"))
