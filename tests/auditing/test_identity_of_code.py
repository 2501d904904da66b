"""Users' code counts by its source, ours by its names, in this process and in any other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lastiterate as li
from lastiterate import data
from lastiterate.auditing.identity import fingerprint
from lastiterate.auditing.stores.store import Store
from lastiterate.training import problems
from tests.auditing.conftest import RUN
from tests.auditing.test_identity import different, identity

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
