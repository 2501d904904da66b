"""The table comes first: whatever becomes of a picture, in real processes, costs the picture alone (20 seconds)."""

import os
import signal
import subprocess
import sys
import time

import pytest

RUN = "epsilon --steps 10 --sampling full --noise-multiplier 20 --delta 1e-5"


def start(folder, command, limits="", **environment):
    """Run a command in a process whose resources are limited first."""
    code = f"import resource, sys\n{limits}\nsys.argv[0] = 'lastiterate'\nfrom lastiterate.cli import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", code, *command.split()],
        cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def failed(folder, command, reason, status=3, **options):
    """What a command printed that could not draw, and said so in one sentence."""
    result = start(folder, command, **options)
    assert result.returncode == status, result.stderr
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("; the printed output is complete\n")
    assert "Picture" not in result.stdout
    assert not [path for path in folder.rglob("*") if path.suffix in (".png", ".html", ".part")]
    return result.stdout


# So many addresses are too few for V8, which sets many aside for later, and enough for everything else.
LITTLE_MEMORY = "resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))"
FULL_DISK = "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"limits": FULL_DISK}, "File too large"),
        ({"limits": LITTLE_MEMORY}, "the drawing process was ended by SIG"),
        ({"LASTITERATE_DRAWING_SECONDS": "0.01"}, "drawing took more than 0.01 seconds"),
    ],
)
def test_a_picture_that_fails_is_one_sentence_after_the_table(tmp_path, options, reason):
    assert "predicted   epsilon" in failed(tmp_path, f"{RUN} --plot a.png", reason, **options)


def test_a_process_that_draws_and_is_killed_is_one_sentence(tmp_path):
    renderer = tmp_path / "vl_convert.py"
    renderer.write_text(
        "import os, time\n\ndef vegalite_to_png(spec, scale):\n"
        "    open('began', 'w').write(str(os.getpid()))\n    time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "lastiterate", *RUN.split(), "--plot", "a.png"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    began = tmp_path / "began"
    while not began.exists() or not began.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(int(began.read_text()), signal.SIGKILL)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 3
    assert "predicted   epsilon" in output
    assert "ended by SIGKILL" in errors
    assert errors.count("\n") == 1
