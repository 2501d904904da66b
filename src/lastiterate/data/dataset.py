"""Data sets of labelled images or features: validated once and read-only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lastiterate.common.types import Float32Array, FloatArray, Int32Array, NumberArray
from lastiterate.common.validation import integer, number, shown

_Scalar = TypeVar("_Scalar", bound=np.generic)

_BLOCK = 4096  # examples whose norms are computed at once
MOST_CLASSES = 2**31 - 1  # labels are int32
MOST_UNASKED = 2**16  # limit of the default of ``classes``, because models have weights for each class


@dataclass(frozen=True, eq=False)
class Dataset:
    """Validated, labelled images or features for training and testing, as read-only arrays.

    Args:
        name: name of the data set in reports.
        x_train: images: float32 in [0, 1] of shape [n, height, width, channels]. Or features: float32 or uint8 of
            shape [n, features].
        y_train: int32 in 0..classes-1 of shape [n].
        x_test: like ``x_train``, with images or features of the same shape.
        y_test: like ``y_train``.
        classes: number of classes. A class may have no images.
        feature_norm: the bound on the norm of every example's features; uint8 stands for values in [0, 1], like the
            pixels of an image. None for images.
    """

    name: str
    x_train: NumberArray = field(repr=False)
    y_train: Int32Array = field(repr=False)
    x_test: NumberArray = field(repr=False)
    y_test: Int32Array = field(repr=False)
    classes: int
    feature_norm: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name must be a text that is not empty, got {shown(self.name)}")
        object.__setattr__(self, "classes", integer("classes", self.classes, 1, MOST_CLASSES))
        if self.feature_norm is not None:
            number("feature_norm", self.feature_norm, 0.0, open_low=True)
        for x, y in (("x_train", "y_train"), ("x_test", "y_test")):
            if self.feature_norm is None:
                images = _checked(x, getattr(self, x), np.float32, "[n, height, width, channels], each at least 1", 4)
                _check_range(x, images)
            else:
                kind = np.uint8 if getattr(getattr(self, x), "dtype", None) == np.uint8 else np.float32
                images = _checked(x, getattr(self, x), kind, "[n, features], each at least 1", 2)
                if _norms(images).max() > self.feature_norm * (1.0 + 1e-6):
                    raise ValueError(f"{x} must have features of norm at most {self.feature_norm!r}, got a larger norm")
            labels = _checked(y, getattr(self, y), np.int32, "[n] with n at least 1", 1)
            for label in (int(labels.min()), int(labels.max())):
                if not 0 <= label < self.classes:
                    raise ValueError(f"{y} must be in 0..{self.classes - 1}, got {label}")
            if len(images) != len(labels):
                raise ValueError(f"{y} must have one label for each of the {len(images)} images, got {len(labels)}")
            object.__setattr__(self, x, _frozen(images))
            object.__setattr__(self, y, _frozen(labels))
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise ValueError(
                f"x_test must have images of shape {self.x_train.shape[1:]} like x_train, got {self.x_test.shape[1:]}"
            )
        if self.x_train.dtype != self.x_test.dtype:
            raise ValueError(f"x_test must be {self.x_train.dtype} like x_train, got {self.x_test.dtype}")

    @classmethod
    def from_arrays(
        cls,
        name: str,
        x_train: ArrayLike,
        y_train: ArrayLike,
        x_test: ArrayLike,
        y_test: ArrayLike,
        classes: int | None = None,
        feature_norm: float | None = None,
    ) -> Dataset:
        """Return a data set from images as uint8 or as floats in [0, 1], with or without an axis of channels.

        Or from features of shape [n, features], as numbers of any size, with a public bound ``feature_norm`` on the
        norm of an example. Choose the bound without looking at private data. Larger features are scaled down to it.
        Features in uint8 stay uint8, which saves memory; their unit is 1/255, as for images.

        Labels may be integers of any type, of shape [n] or [n, 1]. The default of ``classes`` is the largest label
        plus 1, which must be at most 65,536.
        """
        train_labels, test_labels = _as_labels("y_train", y_train), _as_labels("y_test", y_test)
        if classes is None:
            classes = 1 + max(_largest("y_train", train_labels), _largest("y_test", test_labels))
        if feature_norm is None:
            train_images: NumberArray = _as_images("x_train", x_train)
            test_images: NumberArray = _as_images("x_test", x_test)
        else:
            bound = number("feature_norm", feature_norm, 0.0, open_low=True)
            train_images, test_images = (_as_features(*x, bound) for x in (("x_train", x_train), ("x_test", x_test)))
        return cls(name, train_images, train_labels, test_images, test_labels, classes, feature_norm)

    @property
    def feature_scale(self) -> float | None:
        """The factor that brings features to a norm of at most 1, or None for images."""
        if self.feature_norm is None:
            return None
        return (1.0 / 255.0 if self.x_train.dtype == np.uint8 else 1.0) / self.feature_norm

    def take(self, train: int | None = None, test: int | None = None) -> Dataset:
        """Return the first ``train`` and ``test`` images. None means all images. The arrays are views, not copies."""
        n = len(self.x_train) if train is None else integer("train", train, 1, len(self.x_train))
        m = len(self.x_test) if test is None else integer("test", test, 1, len(self.x_test))
        return replace(
            self, x_train=self.x_train[:n], y_train=self.y_train[:n], x_test=self.x_test[:m], y_test=self.y_test[:m]
        )


def _checked(name: str, array: object, dtype: type[np.generic], shape: str, axes: int) -> NumberArray:
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        article = "an" if dtype is np.int32 else "a"
        raise ValueError(f"{name} must be {article} {dtype.__name__} array, got {_type_of(array)}")
    if array.ndim != axes or not array.size:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    return array


def _check_range(name: str, images: NumberArray) -> None:
    for pixel in (float(images.min()), float(images.max())):
        if not 0.0 <= pixel <= 1.0:  # min and max are NaN if any pixel is NaN
            raise ValueError(f"{name} must be in [0, 1], or in 0..255 as uint8, got {pixel!r}")


def _as_features(name: str, value: ArrayLike, bound: float) -> NumberArray:
    """Return features of norm at most ``bound``. Larger ones are scaled down, each example by itself."""
    given = _as_array(name, value)
    if given.ndim != 2 or not given.size or given.dtype.kind not in "iuf":
        raise ValueError(
            f"{name} must be numbers of shape [n, features], each at least 1, because feature_norm was given, "
            f"got {given.dtype} of shape {given.shape}"
        )
    features = given if given.dtype == np.uint8 else given.astype(np.float32)
    norms = _norms(features)
    if not np.isfinite(norms).all():
        raise ValueError(f"{name} must be finite numbers in the range of float32, got inf or NaN")
    if (large := norms > bound).any():
        features = features.copy()
        scaled = features[large] * (bound / norms[large, None])
        features[large] = np.floor(scaled) if features.dtype == np.uint8 else scaled
    if features is not value:
        features.flags.writeable = False
    return features


def _norms(features: NumberArray) -> FloatArray:
    unit = 1.0 / 255.0 if features.dtype == np.uint8 else 1.0
    blocks = (features[begin : begin + _BLOCK].astype(np.float64) for begin in range(0, len(features), _BLOCK))
    return np.concatenate([unit * np.linalg.norm(block, axis=1) for block in blocks])


def _as_images(name: str, value: ArrayLike) -> Float32Array:
    given = _as_array(name, value)
    if given.ndim == 2:
        raise ValueError(
            f"feature_norm must be given for features, as in {name} of shape {given.shape}: a public bound on the norm "
            "of an example, chosen without looking at private data"
        )
    if given.dtype != np.uint8 and given.dtype.kind != "f":
        raise ValueError(f"{name} must be uint8 or floats in [0, 1], got {given.dtype}")
    if given.ndim not in (3, 4) or not given.size:
        raise ValueError(
            f"{name} must have shape [n, height, width] or [n, height, width, channels], each at least 1, "
            f"got {given.shape}"
        )
    result: Float32Array
    if given.dtype == np.uint8:
        result = np.divide(given, 255, dtype=np.float32, order="C")
    else:
        _check_range(name, given)
        result = given.astype(np.float32, order="C")
    result.flags.writeable = False
    return result if result.ndim == 4 else result[..., np.newaxis]


def _as_labels(name: str, value: ArrayLike) -> Int32Array:
    given = _as_array(name, value)
    if given.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got {given.dtype}")
    if given.ndim != 1 and given.shape[1:] != (1,):
        raise ValueError(f"{name} must have shape [n] or [n, 1], got {given.shape}")
    for label in (int(given.min(initial=0)), int(given.max(initial=0))):
        if not 0 <= label < MOST_CLASSES:
            raise ValueError(f"{name} must be at least 0 and below {MOST_CLASSES}, got {label}")
    return given.reshape(-1).astype(np.int32)


def _largest(name: str, labels: Int32Array) -> int:
    largest = int(labels.max(initial=0))
    if largest >= MOST_UNASKED:
        raise ValueError(
            f"{name} must be below {MOST_UNASKED}, because models have weights for every class up to the largest "
            f"label, got {largest}: number the classes from 0, or pass classes= to "
            "lastiterate.data.Dataset.from_arrays"
        )
    return largest


def _as_array(name: str, value: ArrayLike) -> NumberArray:
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be an array, got {_type_of(value)}") from None


def _frozen(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    owner = array if array.base is None else array.base
    if isinstance(owner, np.ndarray) and not owner.flags.writeable and not array.flags.writeable:
        return array
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy


def _type_of(value: object) -> str:
    return f"one of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
