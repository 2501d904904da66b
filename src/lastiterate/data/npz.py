"""NumPy archives, the form in which most small data sets are passed around."""

from __future__ import annotations

import numpy as np

from lastiterate.data.dataset import Dataset
from lastiterate.data.files import BadFile, Location, as_path, blaming, decoding

KEYS = ("x_train", "y_train", "x_test", "y_test")


def load_npz(path: Location) -> Dataset:
    """The arrays ``x_train, y_train, x_test, y_test`` of an .npz file; it may hold others. Nothing is unpickled.

    Images and labels as :meth:`Dataset.from_arrays` takes them. The data set is named after the file.
    """
    source = as_path(path)
    with decoding(source, "an .npz archive of numeric arrays") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise BadFile(f"{str(source)!r} must be an .npz archive, got a single array")
        with archive:
            missing = [key for key in KEYS if key not in archive]
            if missing:
                raise BadFile(f"{str(source)!r} must hold {', '.join(KEYS)}, got no {', '.join(missing)}")
            x_train, y_train, x_test, y_test = (archive[key] for key in KEYS)
    with blaming(source):
        return Dataset.from_arrays(source.stem, x_train, y_train, x_test, y_test)
