"""Figures that rest on audits: what is trained at each scale, and how audits become rows.

What the figures share is the paper's: delta, confidence, and the "PLD approach", in which sample rate and steps are
known and the noise is estimated (our last-iterate family). Our threshold is chosen before any model is trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lastiterate.answers import answer_fields

if TYPE_CHECKING:
    from lastiterate.attacks.attack import Attack
    from lastiterate.auditing.engines.engine import Engine
    from lastiterate.auditing.evidence.result import AuditResult
    from lastiterate.auditing.subject import Subject
    from lastiterate.lm import UnseenTokens
    from lastiterate.reproduce import Scale
    from lastiterate.rows import Row, Track
    from lastiterate.run import DPSGD

DELTA, CONFIDENCE, METHOD = 1e-5, 0.95, "last-iterate"
MODELS = {"quick": 256, "full": 512}  # a world; 512 is the paper's
HEURISTIC_NOTE = "Last iterate is a heuristic: it predicts, it does not guarantee. --json prints every row."
ALL = ("data", "store", "models", "engine")
_MODEL = {"quick": "mlp", "full": "wide-resnet"}
_CIFAR = (32, 32, 3)
# Of the sum of a batch's gradients, whatever its size: 4 for the mean of 4,096 is De et al.'s (2022).
LEARNING_RATE = {"quick": 1.0 / 64.0, "full": 4.0 / 4096.0}


@dataclass(frozen=True)
class Audits:
    """How the audits of a figure are made.

    Args:
        data: where the data set is. None: the embedded digits, which are for the quick scale only.
        model: a language model, folder or name on the hub, for the table of language models.
        text: the dialogues that it is fine-tuned on.
        store: a folder for the scores, one file an audit; what is found there is not trained again. None: none is kept.
        models: how many a world. None: what the figure says.
        engine: "local", "ray", or an engine object.
    """

    data: str | None = None
    model: str | None = None
    text: Path | None = None
    store: Path | None = None
    models: int | None = None
    engine: str | Engine = "local"


@dataclass(frozen=True, eq=False)
class Case:
    """One audit of a figure; ``labels`` are the columns that tell its row from others with the same run."""

    run: DPSGD
    attack: Attack | UnseenTokens
    labels: Row


def subject_of(scale: Scale, audits: Audits) -> Subject:
    """What is trained: a small network on whatever data at the quick scale, the paper's model on CIFAR-10 in full."""
    from lastiterate.auditing.subject import find_subject

    if scale == "full" and audits.data is None:
        raise ValueError("data must be given at scale full: a folder with CIFAR-10's own files, as in --data PATH")
    subject = find_subject(audits.data or "digits", _MODEL[scale], None, lambda examples: None)
    shape = subject.problem.examples[0].shape[1:]
    if scale == "full" and shape != _CIFAR:
        raise ValueError(f"data must be images of shape {_CIFAR} at scale full, as CIFAR-10's are, got shape {shape}")
    return subject


def measure(
    name: str,
    subject: Subject,
    cases: Sequence[Case],
    track: Track,
    audits: Audits,
    *,
    models: int,
    quality: Literal["accuracy", "perplexity"] | None = None,
) -> list[Row]:
    """Audit the cases one after the other, each with randomness of its own, so that luck is not shared by rows.

    ``models`` is how many a world where ``audits`` does not say.
    """
    import lastiterate

    models = audits.models if audits.models is not None else models
    rows = []
    for seed, case in track(list(enumerate(cases))):
        one = replace(subject, run=case.run)
        file = one.default_store(one.experiment(case.attack, models, seed)).name
        result = lastiterate.audit(
            case.run,
            subject.problem,
            case.attack,
            models,
            seed,
            None if audits.store is None else audits.store / f"{name}-{file}",
            audits.engine,
            delta=DELTA,
            confidence=CONFIDENCE,
            methods=[METHOD],
            test=subject.test if quality == "accuracy" else None,
            data=subject.words,
        )
        rows.append(_row(case.labels, result, quality))
    return rows


def _row(labels: Row, result: AuditResult, quality: str | None) -> Row:
    run, found = result.run, result.estimates[METHOD].epsilon
    row: Row = {**labels, "sample_rate": float(run.sample_rate), "steps": run.steps}
    row["noise_multiplier"] = float(run.noise_multiplier)
    row |= answer_fields({name: result.predictions[name] for name in ("last_iterate", "composition")})
    if quality == "perplexity":
        row["perplexity_before"] = result.perplexity_before
    if quality:
        row[quality] = getattr(result, quality)
    row |= empirical_fields(found, result.confidence, result.models)
    fraction = result.signal / result.ideal_signal if result.ideal_signal else None
    return row | {"signal": result.signal, "signal_fraction": fraction}


def empirical_fields(epsilon: float, confidence: float, models: int) -> Row:
    """An empirical epsilon and what stands next to it wherever it is shown."""
    fields: Row = {"empirical": epsilon if math.isfinite(epsilon) else None}
    if fields["empirical"] is None:
        fields["empirical_reason"] = "no noise of this family explains so few errors"
    return fields | {"confidence": confidence, "models": models}


def notes(rows: list[Row]) -> list[str]:
    """What the empirical epsilons of these figures rest on."""
    sentences = [
        HEURISTIC_NOTE,
        "Empirical: at least this, at the stated confidence, by the last-iterate family at a threshold chosen without "
        "looking at the scores.",
    ]
    if "signal" in rows[0]:
        sentences.append(
            "Signal: d', and the fraction of what it would be if nothing but noise and canary moved the score."
        )
    return sentences
