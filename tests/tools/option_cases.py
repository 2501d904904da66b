"""Command lines with good and bad values for every option that the commands have, read off the commands themselves.

An option that is new is tried without being listed here: what it takes is told by its metavar.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import typer

from lastiterate.attacks import NAMED
from lastiterate.cli.app import app
from lastiterate.labels import METHODS
from lastiterate.paper.counterexamples import NAMES as COUNTEREXAMPLES
from lastiterate.paper.reproduce import NAMES as FIGURES


@dataclass(frozen=True)
class Option:
    """What may be written after a command: ``name`` is --steps, or that of a positional argument."""

    command: str
    name: str
    metavar: str
    is_flag: bool = False

    @property
    def is_positional(self) -> bool:
        return not self.name.startswith("-")


def all_options() -> list[Option]:
    """Every option and argument of every command."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return [
        Option(name, parameter.opts[0], parameter.metavar or "", bool(getattr(parameter, "is_flag", False)))
        for name, command in commands.items()
        for parameter in command.params
    ]


# Texts after @ are files that the case is given: see ``given_files``.
_RUN = "--steps 10 --sample-rate .1 --noise-multiplier 1"
_BATCHES = "--dataset-size 100 --batch-size 10 --epochs 2"
_AUDIT = "--steps 2 --sample-rate .1 --noise-multiplier 1 --models 2 --method clopper-pearson --store s.sqlite"
_TEXTS = "--model @tiny --text @texts.txt --longest 16"
_SCHEDULED = "--learning-rate .1 --schedule warmup-cosine --warmup-steps 2"
_LM = f"{_TEXTS} --steps 2 --sample-rate .5 --noise-multiplier 1 --models 2 --method clopper-pearson --store s.sqlite"
BASES = {
    "epsilon": [
        f"{_RUN} --delta 1e-5",
        f"{_RUN} --delta 1e-5 --sentence",
        f"{_RUN} --delta 1e-5 --convex .9 --json",
        f"{_RUN} --delta 1e-5 --releases 5,10",
        f"{_RUN} --delta 1e-5 --group-size 2 --json",
        f"{_RUN} --delta 1e-5 --neighbours replace",
        f"{_RUN} --delta 1e-5 {_SCHEDULED} --json",
        f"{_RUN} --delta 1e-5 --learning-rate .1 --schedule step --drop-every 3",
        f"{_BATCHES} --noise-multiplier 1 --delta 1e-5 --last-batch drop",
    ],
    "delta": [
        f"{_RUN} --epsilon 1",
        f"{_RUN} --epsilon 1 --releases 2 --group-size 2",
        f"{_BATCHES} --noise-multiplier 1 --epsilon 1 --neighbours replace",
    ],
    "calibrate": [
        "--steps 10 --sample-rate .1 --epsilon 2 --delta 1e-5",
        f"--steps 10 --sample-rate .1 --epsilon 2 --delta 1e-5 {_SCHEDULED}",
        f"{_BATCHES} --epsilon 2 --delta 1e-5 --releases 2 --last-batch keep",
    ],
    "plan": [
        "--dataset-size 100 --epochs 2 --batch-sizes 10,20 --epsilon 2 --delta 1e-5",
        f"--dataset-size 100 --epochs 2 --batch-sizes 10,20 --epsilon 2 --delta 1e-5 {_SCHEDULED} --last-batch keep",
    ],
    "power": [
        f"{_RUN} --models 20 --method clopper-pearson",
        f"{_RUN} --models 20 --method gdp --anytime --json",
        f"{_RUN} --models 20 --method one-run --one-run --json",
        f"{_RUN} --models 20 --method clopper-pearson --group-size 2 --leaks-noise .5 --claim-epsilon 1",
    ],
    "check": [
        "--trainer @mine.py:parameters --models 8",
        "--trainer @mine.py:parameters --models 8 --json --canary example",
        "--trainer @mine.py:parameters --models 8 --junit found.xml",
    ],
    "audit": [
        "--trainer @mine.py:train --models 80 --method gdp --store s.sqlite --json --anytime --until refuted",
        "--trainer @mine.py:train --models 4 --method clopper-pearson --store s.sqlite --dry-run",
        "--trainer @mine.py:train --models 4 --method clopper-pearson --store s.sqlite",
        "--trainer @mine.py:train --models 4 --method gdp --store s.sqlite --json",
        f"{_AUDIT} --attack adversarial",
        f"{_AUDIT} --attack adversarial --json",
        f"{_AUDIT} --attack adversarial --dry-run",
        f"{_AUDIT} --attack adversarial --group-size 2 --json",
        f"{_AUDIT} --attack adversarial --releases 2 --json",
        f"{_AUDIT} --attack adversarial --neighbours replace --anytime",
        f"{_AUDIT} --attack @mine.py:Attack",
        f"{_AUDIT} --model logistic --dry-run",
        f"{_AUDIT} --model logistic --json",
    ],
    "audit-lm": [f"{_LM} --dry-run", f"{_LM} --dry-run --json", f"{_LM} --json"],
    "report": ["@audit.sqlite", "@audit.sqlite --json", "@audit.sqlite @other.sqlite", "@audit.sqlite @junk"],
    "estimate": ["@few.csv", "@few.csv --json --anytime", f"@few.csv {_RUN} --method all"],
    "probe": [
        "zeroing --steps 4 --models 4 --json",
        "quadratic --steps 4 --models 4 --json",
        "shift --steps 4 --models 4 --json",
        "malicious --models 4 --json",
        "--list",
    ],
    "reproduce": ["figure1 --json"],
    "explore": ["--port 0 --json", "--port 0 --no-browser"],
    "watch": [". --port 0 --json", ". --port 0 --no-browser"],
}
FILES = (
    "audit.sqlite", "few.csv", "filter.txt", "folder.png", "images.npz", "loop", "mine.py", "junk", "other.sqlite",
    "texts.txt", "tiny",
)  # fmt: skip

_NUMBERS = ["0.1", "0.5", "1", "2", "1e-3"]
_GOOD_BY_NAME = {
    "--steps": ["1", "2", "3"],
    "--models": ["2", "3", "8", "auto"],
    "--until": ["refuted", "minutes=1", "epsilon=1", "refuted,epsilon=2"],
    "--signal": ["1", "0.5"],
    "--spread": ["1", "1.5"],
    "--leaks-noise": ["0.3", "0.5", "1"],
    "--leaks-epsilon": ["1", "20"],
    "--sample-rate": [".1", "1", ".5,.5"],
    "--batch-size": ["5", "10"],
    "--epochs": ["1", "2", "0.5"],
    "--weights": ["1", "1,2", "1,2,3,4,5,6,7,8,9,10"],
    "--delta": ["1e-5", "0.1"],
    "--convex": ["0.9", "1", "0.5"],
    "--diameter": ["0.1", "2"],
    "--learning-rate": ["0.1", "1", ".1,.2"],
    "--schedule": ["cosine", "linear", "step", "warmup-cosine"],  # which of their parameters are there is chance
    "--drop-every": ["1", "3"],
    "--warmup-steps": ["1", "2"],
    "--releases": ["1", "2", "1,2", "5,10"],
    "--group-size": ["1", "2"],
    "--noise-filter": ["1", "1,-.5", "2,.5,.1", "@filter.txt"],
    "--min-separation": ["1", "2"],
    "--method": [*METHODS, "all"],
    "--attack": [*NAMED, "@mine.py:Attack"],
    "--engine": ["local"],
    "--address": ["127.0.0.1:9"],
    "--gpus": ["0"],
    "--trainer": ["@mine.py:train", "@mine.py:parameters"],
    "--data": ["digits", "@images.npz"],
    "--model": ["mlp", "logistic", "@tiny"],
    "--text": ["@texts.txt"],
    "--held-out": ["0.2", "@texts.txt"],
    "--export": ["scores.csv", "scores.parquet"],
    "--summary": ["page.html", "page.md"],
    "--port": ["0"],
    "--host": ["127.0.0.1", "localhost"],
    "--junit": ["found.xml"],
    "--plot": ["p.svg", "p.png", "p.html"],
    "--store": ["s.sqlite", "new/s.sqlite"],
    "--output": ["out", "out.svg"],
    "--device": ["cpu"],
    "--seed": ["0", "7"],
    "--longest": ["8", "16"],
    "--microbatch": ["1", "4"],
    "--examples": ["10", "20"],
    "--canary-length": ["2", "4"],
    "file": ["@few.csv"],
    "folder": ["."],
    "stores": ["@audit.sqlite", "@other.sqlite"],
}
_NAMES_OF = {"probe": list(COUNTEREXAMPLES), "reproduce": [*FIGURES, "all"]}
_BAD_NUMBERS = [
    "-1", "0", "nan", "inf", "-inf", "1e999", "-1e-300", "5e-324", "1.7e308", "1e15", "99999999999999999999999", "0x10",
    "1_000", "\uff11\uff12", "\u00b2", "1.5", "1e5", "+1", ".5.", "1,5", "1,2,3", ",", "1,,2", ",1", "True",
    ",".join(map(str, range(1, 20_000))), "1," * 60_000 + "1",
]  # fmt: skip
_BAD_WORDS = [
    "", " ", "-", "--", "--json", "-h", "x", "X" * 5000, "9" * 5000, "'", '"', "a\nb", "a\rb", "\t", "\x1b[31m", "\0",
    "\udcff", "\u202e", "na\u00efve", "[red]x[/red]", "%s{0}", "<b>", "None", "null", "*", "a,b", ":", ":x", "x:",
]  # fmt: skip
_BAD_PATHS = [
    "missing", "missing/x", ".", "..", "@folder.png", "@junk", "@junk/x", "@loop", "/dev/null", "/dev/full",
    "/dev/null/x", "/proc/self/mem", "~", "~nobody/x", "@few.csv", "@audit.sqlite", "@mine.py", "a" * 300, "x" * 5000,
    "missing/x.png", "x.jpg", "x.PNG", "\udcff.svg", "a\nb.svg", "[b].svg", "\0.png", "@folder.png/",
    "@mine.py:nothing", "@mine.py:broken", "@mine.py:number", "@mine.py:", "@junk:train", "@images.npz", "@texts.txt",
    "@tiny", "@audit.sqlite:train", "/dev/full:train", "@mine.py:Broken", "@mine.py:NoAttack", "@other.sqlite",
]  # fmt: skip


def cases(seed: int) -> Iterator[list[str]]:
    """Command lines without end: every option has its turn, with one value after another."""
    rng = random.Random(seed)
    options = all_options()
    by_command: dict[str, list[Option]] = {}
    for option in options:
        by_command.setdefault(option.command, []).append(option)
    while True:
        for option in rng.sample(options, len(options)):
            yield _case(rng, option, by_command[option.command])


def _case(rng: random.Random, option: Option, siblings: list[Option]) -> list[str]:
    """A command that works, with this option set to something, and perhaps others."""
    arguments = rng.choice(BASES.get(option.command) or [_required(rng, siblings)]).split()
    also = rng.sample(siblings, min(len(siblings), rng.choice([0, 0, 0, 1, 1, 2])))
    for each in [option, *also]:
        bad = rng.random() < (0.75 if each is option else 0.25)
        arguments = _with(rng, arguments, each, rng.choice(_bad(each) if bad else good_values(each)))
    turn = rng.random()
    if turn < 0.03 and arguments:  # something is missing
        del arguments[rng.randrange(len(arguments))]
    elif turn < 0.06:  # something is there twice
        arguments += rng.choice([arguments[:2], arguments[-2:]])
    elif turn < 0.08:
        arguments.insert(rng.randrange(len(arguments) + 1), rng.choice(["--", "-", "--colour", "extra", "-x", ""]))
    return [option.command, *arguments]


def _with(rng: random.Random, arguments: list[str], option: Option, value: str) -> list[str]:
    """The arguments with this option: what it was before is replaced, or sometimes stays."""
    if option.is_flag:
        return [*arguments, option.name]
    if option.is_positional:
        return [value, *(arguments[1:] if arguments and not arguments[0].startswith("-") else arguments)]
    if option.name in arguments and rng.random() < 0.95:
        at = arguments.index(option.name)
        return [*arguments[: at + 1], value, *arguments[at + 2 :]]
    return [*arguments, f"{option.name}={value}"] if rng.random() < 0.1 else [*arguments, option.name, value]


def good_values(option: Option) -> list[str]:
    """What an option takes, so small that a command is quick."""
    if option.is_positional and option.command in _NAMES_OF:
        return _NAMES_OF[option.command]
    if option.name in _GOOD_BY_NAME:
        return _GOOD_BY_NAME[option.name]
    if option.metavar == "INTEGER":
        return ["1", "2", "3"]
    words = [word for word in option.metavar.split("|") if word.islower()]
    return words + _NUMBERS if any(kind in option.metavar for kind in ("NUMBER", "DECAY", "SHARE")) else words or ["x"]


def _bad(option: Option) -> list[str]:
    """What it should not take, mostly: some of it is allowed, and then has to work."""
    paths = any(kind in option.metavar for kind in ("FILE", "FOLDER", "PATH", "STORE", "NAME"))
    return (_BAD_PATHS * 2 + _BAD_WORDS) if paths else (_BAD_NUMBERS * 2 + _BAD_WORDS + _BAD_PATHS[:9])


def _required(rng: random.Random, siblings: list[Option]) -> str:
    """For a command that is new: something for all that must be there."""
    return " ".join(rng.choice(good_values(each)) for each in siblings if each.is_positional)
