"""NumPy archives are read without unpickling, and damaged ones are refused in a sentence."""

import numpy as np
import pytest

from lastiterate.data import load_npz
from tests.data.writers import arrays, objection, refusal


def written(tmp_path, save=np.savez, **changes):
    path = tmp_path / "some.npz"
    save(path, **{key: value for key, value in (arrays() | changes).items() if value is not None})
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_four_arrays_are_read_and_others_ignored(tmp_path, save):
    data = load_npz(written(tmp_path, save, label_names=np.array(["a", "b", "c"])))
    np.testing.assert_array_equal(data.x_train, (arrays()["x_train"] / np.float32(255))[..., None])
    np.testing.assert_array_equal(data.y_test, arrays()["y_test"])
    assert (data.name, data.classes, data.x_train.dtype, data.y_train.dtype) == ("some", 3, np.float32, np.int32)


def test_python_objects_are_refused_and_not_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("exploded").touch, ())

    path = written(tmp_path, y_train=np.array([Bomb()] * 6, dtype=object))
    assert "numeric arrays" in refusal(load_npz, path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x03\x04 and then nothing of a zip", b"words", b"\x80\x04N."])
def test_a_file_that_is_no_archive_is_refused(tmp_path, content):
    path = tmp_path / "some.npz"
    path.write_bytes(content)
    assert refusal(load_npz, path) == (
        f"{str(path)!r} must be an .npz archive of numeric arrays, got a file that is damaged or something else"
    )


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_truncation_and_no_flipped_byte_shows_through(tmp_path, save):
    """Checksums find most of them; where the change is not in what is read, the images are unchanged."""
    path = written(tmp_path, save)
    whole, wanted = path.read_bytes(), load_npz(path)
    rng = np.random.default_rng(0)
    for cut in rng.integers(0, len(whole), 60):
        path.write_bytes(whole[:cut])
        assert str(path) in refusal(load_npz, path)
    refused = 0
    for place, change in zip(rng.integers(0, len(whole), 300), rng.integers(1, 256, 300), strict=True):
        damaged = bytearray(whole)
        damaged[place] ^= change
        path.write_bytes(damaged)
        if said := objection(load_npz, path):
            assert str(path) in said
            refused += 1
        else:
            np.testing.assert_array_equal(load_npz(path).x_train, wanted.x_train)
    assert refused > 50
