"""The command ``lastiterate probe``: counterexamples whose last iterate leaks more than the heuristic predicts."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from lastiterate.cli.audit_options import EngineOptions, resumable
from lastiterate.cli.exit_status import OptionError
from lastiterate.cli.option_values import unfold
from lastiterate.cli.options import Json, Steps, choice, flag, integer_option, number_option, option
from lastiterate.cli.output import check_apart, store_files
from lastiterate.paper.counterexamples import NAMES
from lastiterate.paper.counterexamples.setting import Encoding

if TYPE_CHECKING:
    from lastiterate.paper.counterexamples import Counterexample
    from lastiterate.paper.counterexamples.setting import Probe, Setting

STORE = Path("runs") / "probe"

Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help=f"The counterexample: {', '.join(NAMES)}.", show_default=False)
]
List = Annotated[bool, flag("--list", "Say which counterexamples there are.")]
Worst = Annotated[bool, flag("--worst", "quadratic: search for the worst case of all, and train nothing.")]
Output = Annotated[
    Path | None,
    option(
        "--output",
        None,
        "FOLDER|FILE",
        "Folder for probe-NAME.png and .html (default: the current one), or one file.",
    ),
]


@dataclass(frozen=True)
class SettingOptions:
    """Options for the fields of a ``Setting``. None: the default of the counterexample."""

    steps: Steps = None
    sample_rate: Annotated[
        float | None, number_option("--sample-rate", "Probability that an example is in a batch.")
    ] = None
    noise_multiplier: Annotated[
        float | None, number_option("--noise-multiplier", "Noise sigma over the clipping norm.")
    ] = None
    delta: Annotated[float | None, number_option("--delta", "Delta of (epsilon, delta)-DP, in (0, 1).")] = None
    models: Annotated[int | None, integer_option("--models", "Models a world.")] = None
    confidence: Annotated[float | None, number_option("--confidence", "Of the empirical epsilon (default: 0.95).")] = (
        None
    )
    seed: Annotated[int | None, integer_option("--seed", "Of all randomness (default: 0).")] = None
    store: Annotated[
        Path | None,
        option("--store", None, "FOLDER", f"Keeps every score, for resuming (default: {STORE.as_posix()})."),
    ] = None
    alpha: Annotated[
        float | None, number_option("--alpha", "quadratic: the share forgotten at each step (default: 0.5).")
    ] = None
    growth: Annotated[float | None, number_option("--growth", "shift: the factor v of every step (default: 10).")] = (
        None
    )
    encoding: Annotated[
        Encoding | None, choice("--encoding", get_args(Encoding), "malicious: what is kept of a step (default: both).")
    ] = None

    def given(self) -> dict[str, Any]:
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


@unfold
def probe(
    options: SettingOptions,
    engine: EngineOptions,
    name: Name = None,
    list_: List = False,
    worst: Worst = False,
    output: Output = None,
    json: Json = False,
) -> None:
    """A counterexample of the paper: analyse it, run it, attack its last iterates.

    Each leaks more than the heuristic predicts for its run. The same command again resumes where it was stopped.

    \b
    Example:
      lastiterate probe --list
      lastiterate probe zeroing
      lastiterate probe quadratic --worst --steps 10 --sample-rate 0.1 --noise-multiplier 1 --delta 1e-6
    """
    from lastiterate.cli.probe_output import print_list, print_probe
    from lastiterate.paper.counterexamples import find

    if list_:
        if name is not None:
            raise OptionError(f"--list takes no NAME, got {name!r}")
        return print_list(json)
    if name is None:
        raise OptionError(f"NAME must be given, one of {', '.join(NAMES)}; --list says what they are")
    example, given = find(name), options.given()
    if options.store is not None and options.store.exists() and not options.store.is_dir():
        raise OptionError(f"--store must be a folder, got the file {str(options.store)!r}")
    _check(name, example, [*given, *(["worst"] if worst else [])])
    setting = replace(example.DEFAULTS, **{"store": STORE, **given, "engine": engine.find()})
    if worst:
        _check_worst([*given, *(["output"] if output else []), *(["engine"] if engine != EngineOptions() else [])])
        return _search(setting, json)
    files = _files(name, output, json)
    check_apart({"--output": files, "--store": store_files(options.store or STORE)}, {})
    found = _probe(example, name, setting)
    raise typer.Exit(print_probe(found, files, json))


def _check(name: str, example: "Counterexample", given: list[str]) -> None:
    """Raise an error for an option of another counterexample."""
    for option_ in ("alpha", "growth", "encoding", "worst"):
        if option_ in given and option_ not in example.TAKES:
            own = " and ".join(f"--{each}" for each in example.TAKES)
            raise OptionError(f"--{option_} does not apply to {name}" + (f": it takes {own}" if own else ""))


def _check_worst(given: list[str]) -> None:
    """Raise an error for an option that does not apply to the search."""
    for option_ in given:
        if option_ not in ("steps", "sample_rate", "noise_multiplier", "delta"):
            raise OptionError(f"--{option_} does not apply to --worst, which searches, and neither trains nor draws")


def _search(setting: "Setting", json: bool) -> None:
    """Find the worst cases of the run, family by family, and print them."""
    from lastiterate.cli.output import tracker
    from lastiterate.cli.probe_output import print_worst
    from lastiterate.paper.counterexamples.worst import worst

    run = setting.calibrated_run()
    print_worst(run, setting.delta, worst(run, setting.delta, tracker("searching")), json)


def _files(name: str, output: Path | None, json: bool) -> list[Path]:
    from lastiterate.cli.output import picture_files

    return [] if json and output is None else picture_files(f"probe-{name}", output or Path())


def _probe(example: "Counterexample", name: str, setting: "Setting") -> "Probe":
    from lastiterate.cli.output import announcer

    with resumable(setting.store or STORE):
        return example.probe(setting, announcer(name))
