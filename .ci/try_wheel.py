"""Try a wheel in a fresh environment outside of the repository: python3 .ci/try_wheel.py dist/*.whl.

The core is tried first. Then each extra is installed in turn: before that, what needs it must say how to install it.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUN = ["--steps", "100", "--sample-rate", "0.05", "--noise-multiplier", "1"]
EPSILON = ["epsilon", *RUN, "--delta", "1e-5"]
ACCOUNTING = """
import dp_accounting, lastiterate
step = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0))
assert lastiterate.LastIterateAccountant().compose(step, 100).get_epsilon(1e-5) > 0.0
"""
OPACUS = """
import opacus, torch, lastiterate
lastiterate.register_opacus()
engine, model = opacus.PrivacyEngine(accountant="last_iterate"), torch.nn.Linear(2, 1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 2)), batch_size=4)
made = {"module": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1), "data_loader": loader}
model, optimizer, loader = engine.make_private(**made, noise_multiplier=1.0, max_grad_norm=1.0)
for (batch,) in loader:
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
assert lastiterate.DPSGD.from_opacus(engine, optimizer, loader).steps == 2
"""


def blocks(page: str) -> list[str]:
    """Return the Python blocks of a page of the documentation."""
    return [part.split("```")[0] for part in (ROOT / "docs" / page).read_text().split("```python\n")[1:]]


# What needs each extra: words of the program, or Python.
NEEDS: dict[str, list[str] | str] = {
    "plot": [*EPSILON, "--plot", "a.png"],
    "parquet": ["report", "mine.sqlite", "--export", "a.parquet"],
    "accounting": ACCOUNTING,
    "web": ["explore", "--port", "0", "--json"],
    "audit": ["audit", "--model", "logistic", *RUN, "--models", "16", "--store", "s.sqlite"],
    "ray": "import ray, lastiterate",  # audits on Ray are among the tests
    "opacus": OPACUS,
    "lm": "\n".join(blocks("language_models.md")),
}


def main(wheel: str) -> None:
    """Run epsilon, audit and check as a user would, and then what needs each extra."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        install = [folder / "venv/bin/pip", "install", "-q", "-c", ROOT / "constraints.txt"]
        program = folder / "venv/bin/lastiterate"

        def told(words: list[str] | str, status: int = 0) -> str:
            command = [folder / "venv/bin/python", "-c", words] if isinstance(words, str) else [program, *words]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == status, f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}"
            return done.stderr if status else done.stdout

        subprocess.run([*install, wheel], check=True)
        assert json.loads(told([*EPSILON, "--json"]))["last_iterate"] > 0.0
        trainer = blocks("check.md")[0].split("result = ")[0]
        (folder / "mine.py").write_text(trainer)
        assert json.loads(told(["check", "--trainer", "mine.py:train", "--json"]))["passed"]
        own = ["audit", "--trainer", "own.py:train", "--models", "16", "--store", "mine.sqlite", "--json"]
        (folder / "own.py").write_text(
            "import random, lastiterate\nrun = lastiterate.DPSGD(10, 0.1, 1.0)\n"
            "def train(seed, canary):\n    return random.Random(seed).gauss(canary, 1.0)\n"
        )
        assert json.loads(told(own))["models"] == 16
        print("core: good", flush=True)
        for extra, needs in NEEDS.items():
            missing = told(needs, status=1 if isinstance(needs, str) else 2)
            assert f'pip install ".[{extra}]"' in missing or "No module named" in missing, missing
            subprocess.run([*install, f"{wheel}[{extra}]"], check=True)
            if extra == "web":
                explore([str(program), *needs], folder)
            else:
                told(needs)
            print(f"{extra}: good", flush=True)


def explore(command: list[str], folder: Path) -> None:
    """Start the explorer and read its page."""
    explorer = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE)
    assert explorer.stdout is not None
    try:
        text = b""
        while not text.endswith(b"}\n"):
            text += explorer.stdout.readline()
        with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(json.loads(text)["url"]) as page:
            assert b"<html" in page.read()
    finally:
        explorer.terminate()
        explorer.wait()  # its folder must stay until it has ended


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
