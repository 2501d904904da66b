"""Change one operator or number of a room at a time, and see whether the room's tests notice.

    python -m tests.tools.mutate data --mutants 20
    python -m tests.tools.mutate training/sampling.py --tests tests/training/test_sampling.py

The source is copied to a temporary folder and changed there. A mutant that no test fails on survives, and is printed.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lastiterate"
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def places(tree: ast.AST) -> list[ast.AST]:
    """Everything that can be changed: operators, comparisons, and numbers that are no subscripts of tuples."""
    return [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPPED)
        or (isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED)
        or (isinstance(node, ast.Constant) and type(node.value) in (int, float, bool))
    ]


def mutate(file: Path, number: float) -> str:
    """Change one place of a file, a share ``number`` of the way through; return it as text."""
    tree = ast.parse(file.read_text())
    found = places(tree)
    node = found[int(number * len(found))]
    before = ast.unparse(node)
    if isinstance(node, ast.Compare):
        node.ops[0] = SWAPPED[type(node.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1  # type: ignore[operator]
    else:
        node.op = SWAPPED[type(node.op)]()  # type: ignore[attr-defined]
    file.write_text(ast.unparse(tree))
    return f"{file.name}:{node.lineno}: {before} -> {ast.unparse(node)}"  # type: ignore[attr-defined]


def is_noticed(folder: Path, tests: list[str], root: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=1800)
    except subprocess.TimeoutExpired:
        return True
    assert ended.returncode in (0, 1, 2, 4), ended.stdout + ended.stderr
    return ended.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", help="a folder or file of src/lastiterate")
    parser.add_argument("--tests", nargs="+", help="what must notice; without it the folder of tests of this name")
    parser.add_argument("--tree", type=Path, default=ROOT, help="where these tests are, such as another checkout")
    parser.add_argument("--mutants", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    room, generator, survived = SOURCE / asked.room, random.Random(asked.seed), 0
    files = [room] if room.is_file() else sorted(room.rglob("*.py"))
    weights = [len(places(ast.parse(file.read_text()))) for file in files]
    for _ in range(asked.mutants):
        file, number = generator.choices(files, weights)[0], generator.random()
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(SOURCE, Path(folder) / "lastiterate", ignore=shutil.ignore_patterns("__pycache__"))
            words = mutate(Path(folder) / "lastiterate" / file.relative_to(SOURCE), number)
            noticed = is_noticed(Path(folder), asked.tests or [f"tests/{asked.room}"], asked.tree)
        survived += not noticed
        print(f"{'killed  ' if noticed else 'SURVIVED'} {words}", flush=True)
    print(f"{asked.mutants - survived} of {asked.mutants} mutants are killed")


if __name__ == "__main__":
    main()
