"""One function for all of them, and what every loader says of a path that is not what it should be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from lastiterate.data import load, load_cifar10, load_idx, load_npz
from tests.data.writers import arrays, binary_batch, python2_batch, refusal, write_cifar10, write_idx

UNDERSTOOD = (
    "path must be the word digits, an .npz file, a folder of idx files (like MNIST), "
    "or a folder of CIFAR-10's own files"
)


def test_importing_it_loads_no_framework():
    code = "import sys, lastiterate.data; print([name for name in ('jax', 'torch', 'sklearn') if name in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_an_archive_is_recognised_by_its_ending_in_any_case(tmp_path):
    np.savez(tmp_path / "some.npz", **arrays())
    (tmp_path / "some.npz").rename(tmp_path / "SOME.NPZ")
    assert load(tmp_path / "SOME.NPZ").name == "SOME"


@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_of_idx_files_is_recognised(tmp_path, packed):
    write_idx(tmp_path, packed=packed)
    assert load(str(tmp_path)).x_train.shape == (6, 5, 7, 1)


@pytest.mark.parametrize(
    ("inner", "ending", "write"), [("", "", python2_batch), ("cifar-10-batches-bin", ".bin", binary_batch)]
)
def test_a_folder_of_cifar10_is_recognised(tmp_path, inner, ending, write):
    (tmp_path / inner).mkdir(exist_ok=True)
    write_cifar10(tmp_path / inner, write, ending)
    assert load(tmp_path).name == "cifar10"


def test_an_incomplete_folder_is_told_which_file_is_missing(tmp_path):
    write_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="must hold one of t10k-labels-idx1-ubyte"):
        load(tmp_path)


def test_anything_else_is_told_what_is_understood(tmp_path):
    (tmp_path / "some.csv").write_text("1,2,3")
    assert refusal(load, tmp_path) == f"{UNDERSTOOD}, got the folder {str(tmp_path)!r}"
    assert refusal(load, tmp_path / "some.csv") == f"{UNDERSTOOD}, got the file {str(tmp_path / 'some.csv')!r}"
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.npz")
    assert refusal(load, "digit") == f"{UNDERSTOOD}, but nothing is at 'digit'"


@pytest.mark.parametrize("loader", [load_npz, load_idx, load_cifar10])
def test_a_path_with_nothing_there_is_a_file_not_found(tmp_path, loader):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "nothing", tmp_path / "file" / "below"):
        with pytest.raises(FileNotFoundError, match="but nothing is there"):
            loader(path)


@pytest.mark.parametrize(
    ("write", "name"),
    [(write_idx, "train-labels-idx1-ubyte"), (write_cifar10, "data_batch_2")],
)
def test_a_folder_in_the_place_of_one_of_the_files_is_refused(tmp_path, write, name):
    write(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert refusal(load, tmp_path) == f"{str(tmp_path / name)!r} must be a file, got a folder"


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "some.npz")
    assert refusal(load_npz, tmp_path / "some.npz").endswith("must be a file, got a device")


@pytest.fixture
def forbidding():
    """A folder, and a way to forbid a path in it; for root, who may read everything, by being nobody meanwhile."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    user = os.geteuid()

    def forbid(path: Path) -> None:
        path.chmod(0)
        if user == 0:
            os.seteuid(65534)

    yield folder, forbid
    os.seteuid(user)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    shutil.rmtree(folder)


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
    forbid(folder / name)
    source = folder / name if name.endswith(".npz") else folder
    assert refusal(load, source) == f"{str(folder / name)!r} could not be read: Permission denied"


def test_a_folder_that_may_not_be_entered_is_refused(forbidding):
    folder, forbid = forbidding
    write_idx(folder)
    forbid(folder)
    for loader in (load, load_idx, load_cifar10):
        assert refusal(loader, folder).endswith("could not be read: Permission denied")
