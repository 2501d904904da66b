"""The files of MNIST, under all their names, and every way they can be wrong."""

import gzip
import struct

import numpy as np
import pytest

from lastiterate.data import load_idx
from tests.data.writers import arrays, idx_bytes, objection, refusal, write_idx

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("separator", ["-", "."])
def test_all_usual_names_are_read(tmp_path, separator, packed):
    given = write_idx(tmp_path, separator, packed)
    data = load_idx(tmp_path)
    for part in ("train", "test"):
        images = (given[f"x_{part}"] / np.float32(255))[..., None]
        np.testing.assert_array_equal(getattr(data, f"x_{part}"), images)
        np.testing.assert_array_equal(getattr(data, f"y_{part}"), given[f"y_{part}"])
    assert (data.name, data.classes) == (tmp_path.name, 3)


@pytest.mark.parametrize("kind", [">f4", ">f8"])
def test_images_may_be_floats_with_the_high_byte_first(tmp_path, kind):
    write_idx(tmp_path)
    images = arrays()["x_train"] / 256
    (tmp_path / IMAGES).write_bytes(idx_bytes(images, kind))
    np.testing.assert_array_equal(load_idx(tmp_path).x_train[..., 0], images)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "must begin with the magic number of idx, such as 00 00 08 03, got an empty file"),
        (b"\0\0\x08", "must begin with the magic number of idx, such as 00 00 08 03, got 00 00 08"),
        (b"\0\0\x0a\1\0\0\0\1\0", "must begin with the magic number of idx, such as 00 00 08 03, got 00 00 0a 01"),
        (b"\0\0\x08\xff\0", "must begin with the magic number of idx, such as 00 00 08 03, got 00 00 08 ff"),
        (b"\0\0\x08\3\0\0\0\1\0", "must have the lengths of 3 axes in its header, got a header that ends early"),
        (idx_bytes(np.zeros((6, 5, 7)))[:-1], "must hold 210 bytes after its header, for the shape (6, 5, 7), got 209"),
        (
            idx_bytes(np.zeros((6, 5, 7))) + b"\0",
            "must hold 210 bytes after its header, for the shape (6, 5, 7), got more",
        ),
        (
            struct.pack(">4B3I", 0, 0, 8, 3, *[2**32 - 1] * 3),
            "must unpack to at most 1,073,741,824 bytes, the limit LASTITERATE_MAX_BYTES, got the shape "
            f"{(2**32 - 1,) * 3} in its header: set that environment variable to allow more",
        ),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_wrong_header_or_length_is_refused(tmp_path, content, said, packed):
    write_idx(tmp_path)
    (tmp_path / IMAGES).write_bytes(gzip.compress(content) if packed else content)
    assert refusal(load_idx, tmp_path) == f"{str(tmp_path / IMAGES)!r} {said}"


@pytest.mark.parametrize("packed", [False, True])
def test_no_flipped_byte_of_a_header_shows_through(tmp_path, packed):
    """Pixels may be anything, and so may gzip's time, level and system: bytes 4 to 9, and some values of the next."""
    write_idx(tmp_path, packed=packed)
    path = tmp_path / (IMAGES + ".gz" * packed)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in range(32):
        for change in rng.integers(1, 256, 8):
            damaged = bytearray(whole)
            damaged[place] ^= change
            path.write_bytes(damaged)
            said = objection(load_idx, tmp_path)
            assert not said or str(tmp_path) in said
            if place != 10 or not packed:
                assert bool(said) == (place < 4 or place > 10 if packed else place < 16)
