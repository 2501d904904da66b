"""What the explorer answers is what the Python API and the command line say."""

import contextlib
import io
import shlex

import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli.app import app
from lastiterate.cli.options import ConvexOptions, MethodOptions, SizeOptions
from lastiterate.labels import ANALYSES
from lastiterate.web import explorer
from lastiterate.web.form_fields import FIELDS, ONLY_HERE, PRESETS, counting

USUAL = {field.name: field.usual for field in FIELDS}
ODD = {
    "usual": {},
    "steps": {"length": "steps", "steps": "300"},
    "momentum": {"optimizer": "sgd", "learning_rate": "0.1", "momentum": "0.9", "weight_decay": "0.001"},
    "released": {"releases": "5"},
    "listed": {"releases": "100,400", "length": "steps", "steps": "900"},
    "replaced": {"neighbours": "replace"},
    "shuffled": {"sampling": "shuffled"},
    "balls in bins": {"sampling": "balls-in-bins"},
    "adam": {"optimizer": "adam", "learning_rate": "0.001", "length": "steps", "steps": "200"},
    "adamw": {"optimizer": "adamw", "learning_rate": "0.001", "weight_decay": "0.1", "length": "steps", "steps": "200"},
    "convex": {"convex": "0.99", "length": "steps", "steps": "500", "noise_multiplier": "2"},
    "correlated": {"noise_filter": "1,-0.5", "min_separation": "4"},
    **PRESETS,
}


def options(texts):
    given = counting(texts)
    return {name: text for name, text in given.items() if name != "delta"}


@pytest.mark.parametrize("name", ODD)
def test_the_table_is_that_of_the_analyses(reader, name):
    texts = {**USUAL, **ODD[name]}
    run, delta = reader.run(options(texts)), float(texts["delta"])
    found = explorer.answer(reader, texts)
    order = dict.fromkeys(
        [run.guarantee, *(["convex"] if name == "convex" else []), "last_iterate", "composition", "full_batch"]
    )
    assert [row["analysis"] for row in found["rows"]] == list(order)
    numbers = {each["kind"]: each for each in found["numbers"]}
    assert list(numbers) == ["guarantee", "prediction", "found"]
    answers = {row["analysis"]: row["epsilon"] for row in found["rows"]}
    assert numbers["guarantee"]["epsilon"] == answers[run.guarantee]
    assert numbers["prediction"]["epsilon"] == answers["last_iterate"]
    if name == "convex":
        convex = found["rows"].pop(1)
        assert (convex["analysis"], convex["kind"]) == ("convex", "guarantee")
        assert convex["epsilon"] == li.convex(run, contraction=0.99).epsilon(delta)
    for row in found["rows"]:
        if row["epsilon"] is None:
            with pytest.raises(ValueError, match=r".") as refused:
                ANALYSES[row["analysis"]].curve(run).epsilon(delta)
            assert row["words"].startswith(str(refused.value))
        else:
            assert row["epsilon"] == ANALYSES[row["analysis"]].curve(run).epsilon(delta)
    for each in explorer.lines(reader, texts, part="slow")["risks"]:
        assert each["risk"] == ANALYSES[each["analysis"]].curve(run).risk(each["baseline"])


def test_sampling_is_compared_by_the_guarantee_that_holds_for_each(reader):
    rows = {row["sampling"]: row for row in explorer.lines(reader, USUAL, part="sampling")["rows"]}
    shuffled = reader.run({**options(USUAL), "sampling": "shuffled", "last_batch": "keep"})
    assert [each["epsilon"] for each in rows["shuffled"]["numbers"]] == [
        li.no_amplification(shuffled).epsilon(1e-5),
        li.last_iterate(shuffled).epsilon(1e-5),
    ]
    assert rows["poisson"]["is_own"]
    assert rows["poisson"]["numbers"][0]["epsilon"] == li.composition(reader.run(options(USUAL))).epsilon(1e-5)


@pytest.mark.parametrize("name", ODD)
def test_what_is_copied_says_the_same(reader, name):
    texts = {**USUAL, **ODD[name]}
    found = explorer.answer(reader, texts)
    said = CliRunner().invoke(app, [*shlex.split(found["command"])[1:], "--json"])
    assert said.exit_code == 0, said.stderr
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(found["python"], names)
    assert names["run"] == reader.run(options(texts))
    heuristic = next(row["epsilon"] for row in found["rows"] if row["analysis"] == "last_iterate")
    assert f'"last_iterate": {heuristic!r}' in said.stdout
    assert printed.getvalue().startswith(f"{heuristic!r}\n")
    assert explorer.quoted(reader, texts)["sentence"] == li.sentence(
        names["run"], float(texts["delta"]), names.get("curves")
    )
    assert explorer.quoted(reader, texts)["sentence"] in printed.getvalue()


def test_pictures_have_the_values_of_the_analyses(reader):
    texts = {**USUAL, "length": "steps", "steps": "1000", "releases": "4"}
    run = reader.run(options(texts))
    both = [explorer.lines(reader, texts, part="quick"), explorer.lines(reader, texts, part="slow")]
    assert both[0]["released"] == [250, 500, 750, 1000]
    for found in both:
        for row in found["steps"]:
            assert row["epsilon"] == by_label(row).curve(run.prefix(row["steps"])).epsilon(1e-5)
        for row in found["errors"]:
            assert row["fnr"] == pytest.approx(by_label(row).curve(run).fnr(row["fpr"]), abs=1e-12)
        for row in found["noise"]:
            other = run.replace(noise_multiplier=row["noise"])
            assert row["epsilon"] == pytest.approx(by_label(row).curve(other).epsilon(1e-5), rel=1e-9)
        assert {row["steps"] for row in found["steps"]} >= {1, 1000}
    assert {row["analysis"] for row in both[1]["steps"]} == {"composition (standard)"}


def by_label(row):
    return next(each for each in ANALYSES.values() if each.label == row["analysis"])


def test_a_slow_line_has_fewer_points_but_both_ends():
    places = [float(place) for place in range(9)]
    few = explorer._points(lambda x: x, places, seconds=-1.0)
    assert [x for x, _ in few] == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert len(explorer._points(lambda x: x, places, seconds=60.0)) == 9
    assert list(explorer._coarse_to_fine(9))[:3] == [0, 8, 4]
    assert sorted(explorer._coarse_to_fine(9)) == list(range(9))


def test_how_much_noise_is_what_calibrate_says(reader):
    texts = {**USUAL, "epsilon": "8"}
    run = reader.run(options(USUAL))
    found = explorer.noise(reader, texts)["rows"]
    for row, analysis in zip(found, (li.composition, li.last_iterate), strict=True):
        needed = li.calibrate(run, epsilon=8.0, delta=1e-5, analysis=analysis)
        assert row["noise_multiplier"] == pytest.approx(needed.noise_multiplier, rel=1e-6)
        assert row["guaranteed"] == pytest.approx(li.composition(needed).epsilon(1e-5), rel=1e-6)
    (only,) = explorer.noise(reader, {**texts, "analysis": "full-batch"})["rows"]
    assert only["kind"] == "baseline"


BAD = [
    ({"batch_size": "5x"}, "batch_size"),
    ({"batch_size": "60000"}, "batch_size"),
    ({"dataset_size": "1e5"}, "dataset_size"),
    ({"epochs": "-1"}, "epochs"),
    ({"noise_multiplier": "nan"}, "noise_multiplier"),
    ({"delta": "tiny"}, "delta"),
    ({"sampling": "lottery"}, "sampling"),
    ({"releases": "9999999"}, "releases"),
    ({"optimizer": "sgd", "learning_rate": "", "momentum": "0", "weight_decay": "1"}, "weight_decay"),
    ({"optimizer": "sgd", "averaging": "mean"}, "averaging"),
    ({"noise_filter": "no such file"}, "noise_filter"),
]


@pytest.mark.parametrize(("changes", "field"), BAD)
def test_bad_input_is_refused_with_the_sentence_of_the_command_line(server, changes, field):
    texts = {**USUAL, **changes}
    status, found = server.json("/api/answer", **{name: text for name, text in texts.items() if text})
    assert status == 422
    words = [word for name, text in counting(texts).items() for word in (f"--{name.replace('_', '-')}", text)]
    refused = CliRunner().invoke(app, ["epsilon", *words], prog_name="lastiterate")
    assert refused.exit_code == 2
    assert found["error"] == refused.stderr.strip()
    assert found["field"] == field


def test_every_field_is_an_option():
    known = {
        *ConvexOptions.__dataclass_fields__,
        *SizeOptions.__dataclass_fields__,
        *MethodOptions.__dataclass_fields__,
        "noise_multiplier",
        "delta",
    }
    for field in FIELDS:
        assert field.name in known or field.name in ONLY_HERE
        if field.needs:
            assert field.needs[0] in {each.name for each in FIELDS}
