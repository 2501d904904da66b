"""One function for all of them, and what every loader says of a path that is not what it should be."""

import os

import numpy as np
import pytest

from lastiterate.data import load, load_npz
from tests.data.writers import arrays, binary_batch, refusal, write_cifar10, write_idx

UNDERSTOOD = (
    "path must be the word digits, an .npz file, a folder of idx files (like MNIST), "
    "or a folder of CIFAR-10's own files"
)


def test_anything_else_is_told_what_is_understood(tmp_path):
    (tmp_path / "some.csv").write_text("1,2,3")
    assert refusal(load, tmp_path) == f"{UNDERSTOOD}, got the folder {str(tmp_path)!r}"
    assert refusal(load, tmp_path / "some.csv") == f"{UNDERSTOOD}, got the file {str(tmp_path / 'some.csv')!r}"
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.npz")
    assert refusal(load, "digit") == f"{UNDERSTOOD}, but nothing is at 'digit'"


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "some.npz")
    assert refusal(load_npz, tmp_path / "some.npz").endswith("must be a file, got a device")


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (lambda folder: np.savez(folder / "some.npz", **arrays()), "some.npz"),
        (write_idx, "train-images-idx3-ubyte"),
        (write_cifar10, "data_batch_1"),
        (lambda folder: write_cifar10(folder, binary_batch, ".bin"), "data_batch_1.bin"),
    ],
)
def test_a_file_that_may_not_be_read_is_refused(forbidding, write, name):
    folder, forbid = forbidding
    write(folder)
    forbid(0, folder / name)
    source = folder / name if name.endswith(".npz") else folder
    assert refusal(load, source) == f"{str(folder / name)!r} could not be read: Permission denied"
