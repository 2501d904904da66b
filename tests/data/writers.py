"""Small files in the original formats, written from their specifications."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np

IDX_TYPES = {"u1": 0x08, "i1": 0x09, ">i2": 0x0B, ">i4": 0x0C, ">f4": 0x0D, ">f8": 0x0E}
BATCHES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


def objection(call, *arguments) -> str:
    """The one sentence with which a call refuses, whatever went wrong beneath it; empty if it does not refuse."""
    try:
        call(*arguments)
        return ""
    except (ValueError, FileNotFoundError) as error:
        raised = error
    assert type(raised).__name__ in ("ValueError", "BadArgument", "BadFile", "FileNotFoundError")
    assert raised.__suppress_context__ or raised.__context__ is None
    assert raised.__cause__ is None
    message = str(raised)
    assert "\n" not in message
    assert not message.endswith(".")
    return message


def refusal(call, *arguments) -> str:
    """The sentence of a call that must refuse."""
    message = objection(call, *arguments)
    assert message, "nothing was refused"
    return message


def arrays(train: int = 6, test: int = 4, shape: tuple[int, ...] = (5, 7), classes: int = 3) -> dict[str, np.ndarray]:
    """Images as bytes, all different, and labels with every class in both parts."""
    rng = np.random.default_rng(1)
    return {
        "x_train": rng.integers(0, 256, (train, *shape), dtype=np.uint8),
        "y_train": (np.arange(train) % classes).astype(np.uint8),
        "x_test": rng.integers(0, 256, (test, *shape), dtype=np.uint8),
        "y_test": (np.arange(test) % classes).astype(np.uint8),
    }


def idx_bytes(array: np.ndarray, kind: str = "u1") -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, IDX_TYPES[kind], array.ndim, *array.shape)
    return header + array.astype(kind).tobytes()


def write_idx(folder: Path, separator: str = "-", packed: bool = False, **changes: np.ndarray) -> dict[str, np.ndarray]:
    written = arrays() | changes
    for key, part, content, axes in (
        ("x_train", "train", "images", 3),
        ("y_train", "train", "labels", 1),
        ("x_test", "t10k", "images", 3),
        ("y_test", "t10k", "labels", 1),
    ):
        data = idx_bytes(written[key])
        name = f"{part}-{content}{separator}idx{axes}-ubyte" + (".gz" if packed else "")
        (folder / name).write_bytes(gzip.compress(data) if packed else data)
    return written


def cifar_batch(number: int, n: int = 3) -> tuple[np.ndarray, list[int]]:
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (n, 3072), dtype=np.uint8), [int(label) for label in rng.integers(0, 10, n)]


def binary_batch(rows: np.ndarray, labels: list[int]) -> bytes:
    return b"".join(bytes([label]) + row.tobytes() for label, row in zip(labels, rows, strict=True))


def python2_batch(rows: np.ndarray, labels: list[int]) -> bytes:
    """The opcodes that Python 2 wrote: protocol 2, texts as byte strings, numpy.core."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def whole(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNN" + whole(-1) + whole(-1) + b"K\x00tb"
    content = rows.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + whole(rows.shape[0]) + whole(rows.shape[1]) + b"\x86" + dtype + b"\x89"
    array += b"T" + struct.pack("<i", len(content)) + content + b"tb"
    classes = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    items = text(b"batch_label") + text(b"training batch") + text(b"labels") + classes + text(b"data") + array
    return b"\x80\x02}(" + items + b"u."


def python3_batch(rows: np.ndarray, labels: list[int], protocol: int = 4) -> bytes:
    return pickle.dumps({"batch_label": "training batch", "labels": labels, "data": rows}, protocol=protocol)


def write_cifar10(folder: Path, write=python2_batch, ending: str = "") -> list[tuple[np.ndarray, list[int]]]:
    batches = [cifar_batch(number) for number in range(6)]
    for name, batch in zip(BATCHES, batches, strict=True):
        (folder / (name + ending)).write_bytes(write(*batch))
    return batches
