"""Files that want to become large are refused before memory is taken, in a real process that is watched."""

import os
import pickle
import struct
import zipfile

import numpy as np
import pytest

from lastiterate.data import load_npz
from lastiterate.data.files import VARIABLE
from tests.bombs import Answer, Member, answers, assert_refused, deflated, gzipped, npy_header, zipped
from tests.data.writers import arrays, refusal, write_cifar10, write_idx

GIGABYTES = 2**31
LIMIT = f"at most 1,073,741,824 bytes, the limit {VARIABLE}"
SIXTEENTH = f"at most 67,108,864 bytes, a 16th of the limit {VARIABLE}"
LINE = f"at most 4,194,304 bytes, a 256th of the limit {VARIABLE}"

# What is refused, and in which words.
BOMBS = {
    "an npz of zeros that unpack to gigabytes": LIMIT,
    "an npz whose directory says that it is small": "must be an .npz archive of numeric arrays",
    "an npz whose header alone is large": LIMIT,
    "an npz with a header of gigabytes": "must be an .npz archive of numeric arrays",
    "an npz with a label of 2^30": "y_train must be below 65536",
    "idx files of zeros that unpack to gigabytes": LIMIT,
    "a pickle whose keys are nests": "must be a pickled batch of CIFAR-10",
    "a pickle of a million empty things": LIMIT,
    "a pickle as large as a disk": LIMIT,
    "scores from a device without end": "must be a file, got a device",
    "scores from a pipe that nobody writes to": "must be a file, got a device",
    "scores as large as a disk": SIXTEENTH,
    "scores in one line": LINE,
}


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, Answer]:
    """All of them to one process: importing takes longer than refusing."""
    folder = tmp_path_factory.mktemp("bombs")
    return answers({name: _command(name, folder / str(place)) for place, name in enumerate(BOMBS)}, folder)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_a_sentence_that_names_the_limit(told, name):
    assert_refused(told[name], BOMBS[name])


def _command(name, folder):
    folder.mkdir()
    if name.startswith("scores"):
        return ["estimate", str(_scores(name, folder / "scores.csv"))]
    if name.startswith("an npz"):
        path = folder / "some.npz"
        path.write_bytes(zipped(_members(name)))
        return ["audit", "--data", str(path)]
    if name.startswith("idx"):
        write_idx(folder)
        header = struct.pack(">4B3I", 0, 0, 8, 3, GIGABYTES // 1024, 32, 32)
        (folder / "train-images-idx3-ubyte").write_bytes(gzipped(b"\0", GIGABYTES, header))
    else:
        write_cifar10(folder)
        _pickle(name, folder / "data_batch_1")
    return ["audit", "--data", str(folder)]


def _members(name):
    whole = {key: npy_header(value.shape) + value.tobytes() for key, value in arrays(shape=(28, 28)).items()}
    members = {f"{key}.npy": Member.honest(content) for key, content in whole.items()}
    zeros = npy_header((GIGABYTES // 784, 28, 28))
    match name.removeprefix("an npz "):
        case "of zeros that unpack to gigabytes":
            members["x_train.npy"] = Member(deflated(b"\0", GIGABYTES, zeros), len(zeros) + GIGABYTES)
        case "whose directory says that it is small":
            members["x_train.npy"] = Member(deflated(b"\0", GIGABYTES, zeros), 1000)
        case "whose header alone is large":
            members["x_train.npy"] = Member.honest(npy_header((10**15, 28, 28)))
        case "with a header of gigabytes":
            header = b"\x93NUMPY\2\0" + struct.pack("<I", GIGABYTES)
            members["x_train.npy"] = Member(deflated(b" ", GIGABYTES, header), GIGABYTES)
        case "with a label of 2^30":
            labels = np.array([0, 1, 2, 0, 1, 2**30], "<i4").tobytes()
            members["y_train.npy"] = Member.honest(npy_header((6,), "<i4") + labels)
    return members


def _pickle(name, path):
    if name.endswith("nests"):
        nest = ()
        for _ in range(64):
            nest = (nest, nest)
        path.write_bytes(b"\x80\x04}" + pickle.dumps(nest, 4)[2:-1] + b"Ns.")  # as the key of a dictionary
    elif name.endswith("things"):
        path.write_bytes(b"\x80\x02(" + b"}" * 2_000_000 + b"l.")
    else:
        with path.open("wb") as file:
            file.truncate(2**40)


def _scores(name, path):
    if name.endswith("device without end"):
        return "/dev/zero"
    if name.endswith("writes to"):
        os.mkfifo(path)
    elif name.endswith("disk"):
        with path.open("wb") as file:
            file.truncate(2**40)
    else:
        path.write_bytes(b"world,score\nin," + b"1" * 20_000_000)
    return path


def _archive(path, method, contents):
    with zipfile.ZipFile(path, "w", method) as archive:
        for key, content in contents.items():
            archive.writestr(f"{key}.npy", content)
    return path


def test_bzip2_unpacks_without_bound_and_is_refused(tmp_path):
    contents = {key: npy_header(value.shape) + value.tobytes() for key, value in arrays().items()}
    path = _archive(tmp_path / "some.npz", zipfile.ZIP_BZIP2, contents)
    assert "must be an .npz archive of numeric arrays" in refusal(load_npz, path)
