"""The Opacus training of the examples, with each of its faults."""

import os
import runpy
from pathlib import Path

from tests.tools.zoo.faults import Fault

EXAMPLES = Path(__file__).parents[3] / "examples"
OPACUS = EXAMPLES / "check_opacus.py"
CATEGORIES = {
    "noise": "noise",
    "bias": "noise",
    "seed": "noise",
    "clipping": "clipping",
    "layers": "clipping",
    "momentum": "optimizer",
    "shuffled": "participation",
}


def example(file: Path, fault: str = "") -> dict[str, object]:
    """The names of an example that was started with this ``FAULT`` in its environment."""
    before = os.environ.get("FAULT")
    os.environ["FAULT"] = fault
    try:
        return runpy.run_path(str(file))
    finally:
        if before is None:
            del os.environ["FAULT"]
        else:
            os.environ["FAULT"] = before


def opacus_fault(name: str) -> Fault:
    names = example(OPACUS, name)
    return Fault(f"opacus_{name}", CATEGORIES[name], names["run"], names["train"])
