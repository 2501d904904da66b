"""Sentences for quoting the epsilon of a run in a paper, and BibTeX entries of the paper and of this tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastiterate.common.validation import number
from lastiterate.compare_analyses import Answer, ask, require_curves
from lastiterate.formatting import ONE_TRAINING, describe, neighbours_of, spell_up
from lastiterate.optimizer import APPROXIMATION
from lastiterate.run import require_run

if TYPE_CHECKING:
    from lastiterate.compare_analyses import Curves
    from lastiterate.run import DPSGD

_DIGITS = 4  # significant digits of an epsilon, rounded up
_SEEN = {
    "composition": "for all iterates (composition)",
    "no_amplification": "for all iterates, even if it is known which batches an example is in (no amplification)",
}
_CORRELATED = "for all iterates, whichever of the allowed batches an example is in (a Gaussian mechanism)"


def sentence(run: DPSGD, delta: float, curves: Curves | None = None) -> str:
    """Return sentences about a run for a paper: its guarantee, the neighbouring relation, and the heuristic.

    The numbers of the run are exact, so that the run can be rebuilt from the sentence. Schedules are described by their
    first and last values and their range. Epsilons and delta are rounded up. The epsilon of the guarantee is the upper
    end of its bracket. If the standard analysis does not hold for the run, the guarantee of another analysis is used.
    ``curves`` may contain "convex": ``lastiterate.convex`` with a contraction or a diameter. Its guarantee for the
    final model is then added, with its condition.
    """
    require_run(run)
    delta = number("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    words = [_guaranteed(run, delta), *_of_convex(run, delta, require_curves(curves)), _predicted(run, delta)]
    return f"Training was DP-SGD: {describe(run, quoted=True)}. {' '.join(words)} {ONE_TRAINING}"


def guaranteed(run: DPSGD, delta: float) -> tuple[str, Answer]:
    """Return the analysis and its guarantee (the upper end of its bracket), or the reason why there is none."""
    found, name = Answer(None), ""
    for name in dict.fromkeys([run.guarantee, "no_amplification"]):
        found = ask(run, name, lambda curve: curve.bracket(delta)[1])
        if found.value is not None:
            break
    return name, found


def _of_convex(run: DPSGD, delta: float, curves: Curves) -> list[str]:
    if "convex" not in curves:
        return []
    found = ask(run, "convex", lambda curve: curve.bracket(delta)[1], curves["convex"])
    if found.value is None:
        return [f"Convexity gives no guarantee for the final model alone: {found.reason}."]
    bound = f"({spell_up(found.value, _DIGITS)}, {spell_up(delta)})"
    return [
        f"The final model alone is {bound}-DP on the condition that losses are convex and steps contract as stated."
    ]


def seen_by(run: DPSGD, name: str) -> str:
    """Return in words what an attack may see under the guarantee of this analysis."""
    return _CORRELATED if run.noise_filter else _SEEN[name]


def released_by(run: DPSGD) -> str:
    """Return in words what an attack on this run sees."""
    if run.release_count > 1:
        every = run.release_count == run.steps
        return f"all {run.steps:,} iterates" if every else f"the {run.release_count:,} released checkpoints alone"
    if run.optimizer is not None and run.optimizer.averaging is not None:
        return "the released average of the iterates alone"
    return "the final model alone"


def _guaranteed(run: DPSGD, delta: float) -> str:
    name, found = guaranteed(run, delta)
    if found.value is None:
        return f"No guarantee can be stated under {neighbours_of(run)}: {found.reason}."
    bound = f"({spell_up(found.value, _DIGITS)}, {spell_up(delta)})"
    return f"It is {bound}-DP under {neighbours_of(run)}, {seen_by(run, name)}."


def _predicted(run: DPSGD, delta: float) -> str:
    found = ask(run, "last_iterate", lambda curve: curve.epsilon(delta))
    heuristic = "the last-iterate heuristic (Steinke et al. 2025)"
    if run.prediction == APPROXIMATION:
        heuristic = f"an {APPROXIMATION}, the last-iterate one (Steinke et al. 2025) with Adam's divisor fixed,"
    if found.value is None:
        return f"For {released_by(run)}, {heuristic} predicts nothing: {found.reason}."
    return (
        f"For {released_by(run)}, {heuristic} predicts epsilon {spell_up(found.value, _DIGITS)} at the same delta "
        "for the same neighbours; this is not a guarantee."
    )


# BibTeX entries, with the same facts as CITATION.cff.

_PAPER = """@inproceedings{steinke2025lastiterate,
  title = {The Last Iterate Advantage: Empirical Auditing and Principled Heuristic Analysis of Differentially Private
    {SGD}},
  author = {Steinke, Thomas and Nasr, Milad and Ganesh, Arun and Balle, Borja and Choquette-Choo, Christopher A. and
    Jagielski, Matthew and Hayes, Jamie and Guha Thakurta, Abhradeep and Smith, Adam and Terzis, Andreas},
  booktitle = {The Thirteenth International Conference on Learning Representations},
  year = {2025},
  url = {https://openreview.net/forum?id=DwqoBkj2Mw},
}"""


def bibtex() -> dict[str, str]:
    """Return BibTeX entries of the tool, with its version, and of the paper."""
    from lastiterate import __version__

    tool = f"""@software{{lastiterate,
  title = {{lastiterate: predict, audit and probe what the last iterate of {{DP-SGD}} leaks}},
  author = {{{{the lastiterate authors}}}},
  version = {{{__version__}}},
}}"""
    return {"tool": tool, "paper": _PAPER}
