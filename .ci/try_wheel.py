"""Try a wheel in a fresh environment outside of the repository: python3 .ci/try_wheel.py dist/*.whl."""

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUN = ["--steps", "100", "--sample-rate", "0.05", "--noise-multiplier", "1"]


def main(wheel: str) -> None:
    """Run epsilon, audit, check and explore as a user would."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        install = [folder / "venv/bin/pip", "install", "-q", "-c", ROOT / "constraints.txt"]
        program = folder / "venv/bin/lastiterate"

        def told(*words: str, status: int = 0) -> str:
            done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == status, f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}"
            return done.stderr if status else done.stdout

        subprocess.run([*install, wheel], check=True)
        assert json.loads(told("epsilon", *RUN, "--delta", "1e-5", "--json"))["last_iterate"] > 0.0
        assert 'pip install ".[audit]"' in told("audit", status=2)
        print("epsilon, and a sentence for what is missing: good", flush=True)
        subprocess.run([*install, f"{wheel}[audit,web]"], check=True)
        audit = told("audit", "--model", "logistic", *RUN, "--models", "16", "--store", "s.sqlite", "--json")
        assert json.loads(audit)["models"] == 16
        print("audit: good", flush=True)
        trainer = (ROOT / "docs/check.md").read_text().split("```python\n")[1].split("result = ")[0]
        (folder / "mine.py").write_text(trainer)
        assert json.loads(told("check", "--trainer", "mine.py:train", "--json"))["passed"]
        print("check: good", flush=True)
        explorer = subprocess.Popen([program, "explore", "--port", "0", "--json"], cwd=folder, stdout=subprocess.PIPE)
        assert explorer.stdout is not None
        try:
            text = b""
            while not text.endswith(b"}\n"):
                text += explorer.stdout.readline()
            with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(
                json.loads(text)["url"]
            ) as page:
                assert b"<html" in page.read()
        finally:
            explorer.terminate()
            explorer.wait()  # its folder must stay until it has ended
        print("explore: good")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
