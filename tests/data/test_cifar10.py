"""CIFAR-10 in both of its versions; a pickle can say what is in it, and do nothing."""

import os
import pickle

import numpy as np
import pytest

from lastiterate.data import load_cifar10
from tests.data.writers import (
    binary_batch,
    cifar_batch,
    objection,
    python2_batch,
    python3_batch,
    refusal,
    write_cifar10,
)


def old_protocol(rows, labels):
    return python3_batch(rows, labels, protocol=2)


def old_names(rows, labels):
    """As NumPy 1 wrote it; protocol 2 has names without a length in front."""
    return old_protocol(rows, labels).replace(b"numpy._core", b"numpy.core")


VERSIONS = [
    ("", "", python2_batch),
    ("cifar-10-batches-py", "", python2_batch),
    ("", "", python3_batch),
    ("", "", old_protocol),
    ("", "", old_names),
    ("", ".bin", binary_batch),
    ("cifar-10-batches-bin", ".bin", binary_batch),
]


@pytest.mark.parametrize(("inner", "ending", "write"), VERSIONS)
def test_every_version_is_read_from_its_folder_or_the_one_around_it(tmp_path, inner, ending, write):
    (tmp_path / inner).mkdir(exist_ok=True)
    batches = write_cifar10(tmp_path / inner, write, ending)
    data = load_cifar10(tmp_path)
    rows = np.concatenate([rows for rows, _ in batches[:5]])
    assert data.x_train.shape == (15, 32, 32, 3)
    for channel in range(3):
        plane = rows[:, 1024 * channel : 1024 * (channel + 1)].reshape(-1, 32, 32)
        np.testing.assert_array_equal(data.x_train[..., channel], plane / np.float32(255))
    assert data.y_train.tolist() == [label for _, labels in batches[:5] for label in labels]
    np.testing.assert_array_equal(data.x_test[:, 0, 0, 0], batches[5][0][:, 0] / np.float32(255))
    assert data.y_test.tolist() == batches[5][1]
    assert (data.name, data.classes) == ("cifar10", 10)


def test_the_original_pickles_are_what_python_itself_reads():
    rows, labels = cifar_batch(0)
    batch = pickle.loads(python2_batch(rows, labels), encoding="bytes")
    np.testing.assert_array_equal(batch[b"data"], rows)
    assert batch[b"labels"] == labels


def with_first_batch(tmp_path, content: bytes) -> str:
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(content)
    message = refusal(load_cifar10, tmp_path)
    assert message.startswith(repr(str(tmp_path / "data_batch_1")))
    return message


class Calls:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_a_function_is_refused_and_not_run(tmp_path, protocol):
    target = tmp_path / "exploded"
    for bomb in (Calls(os.system, f"touch {target}"), Calls(eval, f"open({str(target)!r}, 'w')")):
        for content in (pickle.dumps(bomb, protocol), pickle.dumps({"data": bomb, "labels": []}, protocol)):
            message = with_first_batch(tmp_path, content)
            assert "must be a pickle of plain arrays, got a pickle that calls " in message
            assert "system" in message or "eval" in message
            assert not target.exists()


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ([1, 2], "must hold a dictionary, got list"),
        ({"labels": [0]}, "must hold an array as data, got nothing"),
        ({"labels": [0], "data": [1, 2]}, "must hold an array as data, got list"),
        (
            {"labels": ["a"], "data": cifar_batch(0, 1)[0]},
            "must hold class numbers as labels, got a list with other values",
        ),
        ({"labels": [10], "data": cifar_batch(0, 1)[0]}, "must hold labels in 0..9, got 10"),
        ({"labels": [0], "data": np.zeros((1, 3072))}, "must hold uint8 as data, got another type"),
        (
            {"labels": [0], "data": np.zeros((1, 99), np.uint8)},
            "must hold images of 3072 bytes, got data of shape (1, 99)",
        ),
    ],
)
def test_a_pickle_of_something_else_is_refused(tmp_path, batch, said):
    assert with_first_batch(tmp_path, pickle.dumps(batch, protocol=4)).endswith(said)


@pytest.mark.parametrize("write", [python2_batch, python3_batch])
def test_no_damage_to_a_pickle_shows_through(tmp_path, write):
    write_cifar10(tmp_path)
    path = tmp_path / "data_batch_1"
    whole = write(*cifar_batch(0, 1))
    rng = np.random.default_rng(0)
    structure = [place for place in range(len(whole)) if place < 250 or place > len(whole) - 60]
    for cut in [0, 1, 2, *rng.choice(structure, 40)]:
        path.write_bytes(whole[:cut])
        assert str(path) in refusal(load_cifar10, tmp_path)
    refused = 0
    for place, change in zip(rng.choice(structure, 300), rng.integers(1, 256, 300), strict=True):
        damaged = bytearray(whole)
        damaged[place] ^= change
        path.write_bytes(damaged)
        said = objection(load_cifar10, tmp_path)
        assert not said or str(path) in said
        refused += bool(said)
    assert 100 < refused < 300  # names of keys that are not read, and pixels, may be anything
