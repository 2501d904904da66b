"""Users' code counts by its source, ours by its names, in this process and in any other."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks, data
from lastiterate.attacks.attack import Armed, BringsProblem, Unknown, Words
from lastiterate.auditing.identity import fingerprint
from lastiterate.auditing.stores.store import Store
from lastiterate.training import GradientCanary, Problem, problems
from tests.auditing.conftest import RUN
from tests.auditing.test_identity import different, identity, trained

MINE = "import helper\ndef train(seed, canary):\n    return helper.score(seed) + canary\n"
HELPER = "import deeper\ndef score(seed):\n    return deeper.NOISE * (seed % 7)\n"
DEEPER = "NOISE = 1.0\n"


@pytest.mark.parametrize(
    "changed",
    [{"deeper": "NOISE = 2.0\n"}, {"helper": HELPER + "\n"}, {"mine": MINE + "# reworded\n"}],
    ids=["a helper's helper", "a helper", "a comment"],
)
def test_a_trainer_whose_files_have_changed_is_not_resumed(load, tmp_path, changed):
    path = tmp_path / "x.sqlite"
    li.audit(RUN, load(mine=MINE, helper=HELPER, deeper=DEEPER), models=4, store=path)
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"holds another audit \(problem is '\w{16}' in the store and '\w{16}' in this audit\)"
    ) as caught:
        li.audit(RUN, load(**changed), models=4, store=path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    again = load(mine=MINE, helper=HELPER, deeper=DEEPER)
    assert li.audit(RUN, again, models=4, store=path).models == 4


MADE = "def train(seed, canary):\n    return float(seed % 5)\n"


def test_a_trainer_without_source_runs_and_is_not_resumed(tmp_path):
    path, made = tmp_path / "x.sqlite", {}
    exec(MADE, made)
    assert identity(made["train"]).unknown == ("train",)
    assert li.audit(RUN, made["train"], models=4, store=path).models == 4
    before = path.read_bytes()
    with pytest.raises(ValueError, match="the source of train is unknown and cannot be compared") as caught:
        li.audit(RUN, made["train"], models=4, store=path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    with Store.read(path) as store:
        assert len(store.done()) == 8


def test_a_trainer_of_a_session_counts_with_what_it_takes_from_there():
    """A session has no file, but Python keeps the text of what was typed, as notebooks arrange it."""
    import linecache

    def typed(text, session):
        name = f"<cell {len(linecache.cache)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), session)

    def trainer(helper="def helper(seed): return 1.0\n", noise=1.0):
        held = {"__name__": "__main__", "NOISE": noise}
        typed(helper, held)
        typed("def train(seed, canary):\n    return NOISE * helper(seed)\n", held)
        return held["train"]

    assert identity(trainer()) == identity(trainer())
    assert identity(trainer()).unknown == ()
    assert different([trainer(), trainer(noise=2.0), trainer("def helper(seed): return 2.0\n")])


@dataclass(frozen=True)
class Own(BringsProblem):
    """An attack of a user's."""

    name: str = "own"
    source: str = "here"

    def craft(self, run, problem, references):
        return {}

    def arm(self, run, problem, facts):
        own = Problem(np.ones(1), regulariser_gradient=lambda model, step: jnp.zeros_like(model))
        return Armed(own, GradientCanary(np.ones(1)), lambda parameters: np.asarray(parameters, float)[:, 0])

    def expected(self, facts):
        return Unknown()

    def words(self, facts):
        return Words("a test", "score")


def test_a_users_attack_counts_by_its_source_and_by_all_its_fields(load):
    found = identity(None, Own(), run=trained()).values["attack"]
    assert set(found) == {"class", "class source", "name", "source"}
    assert found["class"] == "Own"
    assert (found["name"], found["source"]) == ("own", "here")
    base = "from tests.auditing.test_identity_of_code import Own\n"
    mine = base + "class Mine(Own):\n    {}\nattack = Mine()\ntrain = print\n"
    one, two = (identity(None, _attack(load, mine.format(line)), run=trained()) for line in ("pass", "x = 1"))
    assert one != two
    assert one.values["attack"]["class"] == two.values["attack"]["class"] == "Mine"
    assert one.unknown == ()


def _attack(load, content):
    load(mine=content)
    *_, mine = [each for each in sys.modules.values() if (getattr(each, "__file__", None) or "").endswith("/mine.py")]
    return mine.attack


def test_identities_are_the_same_in_another_process(load, tmp_path):
    train = load(mine=MINE, helper=HELPER, deeper=DEEPER)
    code = (
        "import lastiterate as li; from lastiterate import data; from lastiterate.training import problems;"
        "from lastiterate.auditing.identity import fingerprint; from mine import train;"
        "print(fingerprint(problems.mlp(data.digits(), hidden=4)), fingerprint(train), fingerprint({'a', 'b', 'c'}))"
    )
    folder = Path(train.__code__.co_filename).parent
    ours = Path(li.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{ours}{os.pathsep}{folder}", "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    expected = [problems.mlp(data.digits(), hidden=4), train, {"a", "b", "c"}]
    assert found.split() == [fingerprint(each) for each in expected]


def leaves(value):
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def test_no_sentence_no_module_path_and_no_bytecode_is_in_an_identity(load):
    digits, run = problems.logistic(data.digits()), trained()
    train = load(mine=MINE, helper=HELPER, deeper=DEEPER)
    audits = [
        identity(digits, None, run=run, data="logistic on the digits"),
        identity(digits, attacks.OneRun(), run=run),
        identity(digits, attacks.InputSpace(), run=run),
        identity(None, attacks.Adversarial(), run=run),
        identity(None, Own(), run=run),
        identity(train, attacks.Displacement([1.0])),
    ]
    for each in audits:
        assert json.loads(json.dumps(each.values)) == each.values
        texts = [leaf for leaf in leaves(each.values) if isinstance(leaf, str)]
        assert texts
        for text in texts:
            assert re.fullmatch(r"[A-Za-z0-9-]+", text), text
