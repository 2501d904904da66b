"""Make features from images with a frozen network, for `lastiterate audit --data FILE.npz --feature-norm B`.

    python examples/make_features.py images.npz features.npz NETWORK.py:NAME --size 128

`images.npz` holds x_train, y_train, x_test and y_test, with images in uint8 of shape [n, height, width, channels].
NETWORK.py:NAME is a function that returns a `torch.nn.Module` from images [n, channels, height, width] in [0, 1] to
features [n, d], with weights from public data: a network that saw private images would leak them. Features are kept in
uint8, in steps of a unit that only depends on --largest, so that an example's features depend on no other example.
"""

import argparse
import runpy
from pathlib import Path

import numpy as np
import torch


def features(model: torch.nn.Module, images: np.ndarray, size: int | None, largest: float) -> np.ndarray:
    """Return features in [0, largest] as uint8. Others are set to the nearest of the two ends."""
    found = []
    with torch.inference_mode():
        for begin in range(0, len(images), 256):
            batch = torch.from_numpy(images[begin : begin + 256]).permute(0, 3, 1, 2).float() / 255.0
            if size is not None:
                batch = torch.nn.functional.interpolate(batch, (size, size), mode="bilinear", antialias=True)
            found.append((model(batch) * (255.0 / largest)).clamp(0, 255).round().byte().numpy())
            print(f"\r{begin + len(batch):,} of {len(images):,}", end="", flush=True)
    print()
    return np.concatenate(found)


def main() -> None:
    """Read the options and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("network", metavar="NETWORK.py:NAME")
    parser.add_argument("--size", type=int, help="scale images to this height and width")
    parser.add_argument("--largest", type=float, default=6.0, help="the value that 255 stands for (default: 6)")
    given = parser.parse_args()
    file, _, name = given.network.rpartition(":")
    model = runpy.run_path(file)[name]().eval()
    with np.load(given.images) as data:
        made = {name: features(model, data[name], given.size, given.largest) for name in ("x_train", "x_test")}
        np.savez_compressed(given.output, y_train=data["y_train"], y_test=data["y_test"], **made)
    norms = np.linalg.norm(made["x_test"] / 255.0, axis=1)
    print(f"95% of the test images have features of norm at most {np.quantile(norms, 0.95):.3g}, in units of --largest")


if __name__ == "__main__":
    main()
