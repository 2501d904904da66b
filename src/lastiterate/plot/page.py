"""Web page of an audit: verdict, numbers, pictures and tables. The page opens without a network."""

from __future__ import annotations

import base64
import math
import shlex
from pathlib import Path

from lastiterate.auditing.evidence.audit_result import AuditResult, advice_on, quote_of, three_numbers
from lastiterate.auditing.evidence.estimate import Estimate
from lastiterate.auditing.evidence.forecast import CHANCE
from lastiterate.auditing.load_evidence import risk_words
from lastiterate.common.atomic_write import write_whole
from lastiterate.common.errors import BadArgument
from lastiterate.formatting import caveat_of, describe, per_cent, spell, spell_exact, spell_up
from lastiterate.labels import ANALYSES, METHODS, THRESHOLDS, VERDICTS
from lastiterate.plot.audit_charts import PageChart, page_charts
from lastiterate.plot.chart_file import check_target, render, scripts
from lastiterate.plot.epsilons import spell_epsilon
from lastiterate.plot.page_assets import STATIC, escape, for_script, html_page, strength_bar, tiles, verdict_box

_WIDE, _NARROW = 446, 330  # width of a picture in pixels, on a desktop (two side by side) and on a phone


def write_page(result: AuditResult, path: Path) -> None:
    """Write the page atomically. The file's name must end in .html."""
    if path.suffix.lower() != ".html":
        raise BadArgument("path", f"must end in .html, got {str(path)!r:.200}")
    check_target(path)
    write_whole(path, _page(result).encode(), "page")


def parts_of(result: AuditResult) -> dict[str, str]:
    """Return all parts of the page except the pictures."""
    limits = "".join(f"<li>{escape(sentence)}</li>" for sentence in caveats(result))
    advice = f'<p class="advice"><strong>May I sign?</strong> {escape(advice_on(result))}</p>'
    verdict = verdict_box(result.verdict, result.headline, result.strength.words, result.reason) + advice
    risk = "".join(f'<p class="risk">{escape(each)}</p>' for each in risk_words(result))
    bar = strength_bar(result.strength.caught, result.strength.words, per_cent(CHANCE))
    return {
        "answer": verdict + tiles(three_numbers(result), spell_exact(result.delta)) + risk + bar,
        "quote": _section("To quote", f'<blockquote id="quote">{escape(quote_of(result))}</blockquote>'),
        "more": _folded("All analyses and methods", _epsilons(result) + _estimates(result) + _quality(result))
        + (_folded("Why is the number so low?", _waterfall(result)) if result.waterfall else "")
        + _folded("What was run", _what_was_run(result))
        + _folded("Limits of these numbers", f"<p>{escape(VERDICTS[result.verdict])}</p><ul>{limits}</ul>")
        + _folded("How to compute these numbers again", _recompute(result)),
    }


def title_of(result: AuditResult) -> str:
    """Return the title of an audit: its name, or that of its store."""
    return result.name or (result.store.stem if result.store else "An audit of the released model")


def _page(result: AuditResult) -> str:
    charts, narrow = page_charts(result, _WIDE), page_charts(result, _NARROW)
    specs = {name: [chart.spec, narrow[name].spec] for name, chart in charts.items()}
    images = render("svg", *(chart.spec for chart in charts.values()))
    pictures = {name: _picture(name, charts[name], image) for name, image in zip(charts, images, strict=True)}
    parts = parts_of(result)
    first, others = (
        "".join(each for name, each in pictures.items() if (name in FIRST) is shown) for shown in (True, False)
    )
    shown = _section("Scores and errors", f'<div class="figures">{first}</div>')
    folded = _folded("More pictures", f'<div class="figures">{others}</div>') if others else ""
    about = "".join(f'<p class="soft">{escape(text)}</p>' for text in headings(result))
    draw = (STATIC / "page.js").read_text(encoding="utf-8")
    return html_page(
        escape(title_of(result)),
        "page.css",
        f"<h1>{escape(title_of(result))}</h1>{about}{parts['answer']}{shown}{parts['quote']}{folded}{parts['more']}",
        f'<script type="application/json" id="specs">{for_script(specs)}</script>\n'
        f"<script>{scripts()}</script>\n<script>{draw}</script>\n",
    )


def caveats(result: AuditResult) -> list[str]:
    """Return the caveats of this audit, then the caveats that apply to all audits."""
    joint = ["The confidence is joint: the error is split evenly over the false positive and the false negative rate."]
    return [
        *result.caveats,
        "An empirical epsilon is a lower bound that this attack found. It does not prove privacy: a better attack may "
        "find more.",
        f"{caveat_of(result.run)} Only the standard analysis (composition) is a guarantee, if its assumptions hold.",
        *([] if result.is_one_run else joint),
        "The confidence holds for each method separately, not for all methods together.",
        "A family method assumes that the mechanism belongs to the family. Otherwise its number may be wrong.",
    ]


FIRST = ("scores", "errors")  # pictures that are shown at once


def headings(result: AuditResult) -> list[str]:
    """Return the lines below the title: the data with the run, the owner, and the notes."""
    lines = [f"{result.data or 'your trainer'}: {describe(result.run)}"]
    lines += [f"Owner: {result.owner}"] if result.owner else []
    return [*lines, f"Notes: {result.notes}"] if result.notes else lines


def _epsilons(result: AuditResult) -> str:
    rows = []
    for name, answer in result.predictions.items():
        value = "none" if answer.value is None else spell_epsilon(answer.value)
        meaning = ANALYSES[name].assumed_of(result.run) if answer.value is not None else answer.reason
        rows.append([ANALYSES[name].label_of(result.run), value, meaning])
    for method, each in result.estimates.items():
        holds = f"found, with confidence {per_cent(each.confidence)}; {METHODS[method].assumes}"
        valid = THRESHOLDS[each.threshold_choice].is_valid
        rows.append([METHODS[method].label, _least(each), holds if valid else "uncorrected: not a valid bound"])
    return _table(["by", f"epsilon at delta {spell_exact(result.delta)}", "what it is"], rows)


def _estimates(result: AuditResult) -> str:
    if not result.estimates:
        return "<p>Nothing has been estimated yet.</p>"
    one_run = result.is_one_run
    columns = ["method", "epsilon", "confidence" if one_run else "confidence (joint over both error rates)"]
    columns += ["canaries in and out" if one_run else "models per world", "false positives", "false negatives"]
    columns += ["largest epsilon possible", "threshold", "how it was chosen"]
    rows = [
        [
            METHODS[method].label,
            _least(each),
            per_cent(each.confidence),
            _models(each),
            _errors(each.false_positives, each.fpr_upper),
            _errors(each.false_negatives, each.fnr_upper),
            "not computed" if each.largest is None else spell_epsilon(each.largest),
            spell(each.threshold) if math.isfinite(each.threshold) else "infinite",
            f"{each.threshold_choice}: {THRESHOLDS[each.threshold_choice].meaning}",
        ]
        for method, each in result.estimates.items()
    ]
    return "<h3>Data of the estimates</h3>" + _table(columns, rows)


def _waterfall(result: AuditResult) -> str:
    rows = [[step.name, step.rounded, step.words] for step in result.waterfall]
    seen = ", ".join(
        f"{spell_epsilon(value, found=True)} ({METHODS[name].label})" for name, value in result.detectable.items()
    )
    words = f"Power: if training is correct, 80% of audits by a perfect attack with these models find at least {seen}."
    table = _table(["level", f"epsilon at delta {spell_exact(result.delta)}", "difference from the level above"], rows)
    return f"{table}<p>{escape(words)}</p>"


def _errors(count: int, rate: float) -> str:
    return f"{count:,} (rate at most {spell_up(rate, 3)})" if math.isfinite(rate) else f"{count:,} among the guesses"


def _quality(result: AuditResult) -> str:
    ideal = result.ideal_signal
    signal = f"d' = {spell(result.signal, 3)}" if math.isfinite(result.signal) else "d' is not defined for these scores"
    if ideal is None or not ideal > 0.0:
        signal += "; the ideal is not known"
    elif math.isfinite(result.signal):
        signal += f", {per_cent(round(result.signal / ideal, 3))} of the ideal {spell(ideal, 3)}"
    signal += " (distance of the two worlds' mean scores, in standard deviations)"
    name = "accuracy of the models"
    measured = "not measured" if result.accuracy is None else per_cent(round(result.accuracy, 4))
    if result.perplexity is not None:
        before = "" if result.perplexity_before is None else f", before training {spell(result.perplexity_before)}"
        name = "perplexity on held-out text"
        measured = f"{spell(result.perplexity)}, the geometric mean over the models{before}"
    return _facts({name: measured, "signal of the attack": signal})


def _what_was_run(result: AuditResult) -> str:
    done = f"{len(result.scores_in):,} with the canary and {len(result.scores_out):,} without"
    trained = {"models": f"{done}; {result.models:,} per world are planned"}
    if result.is_one_run:
        trained = {"canaries": f"{len(result.scores_in):,} in the model and {len(result.scores_out):,} not"}
    return _facts(
        {
            "run": describe(result.run),
            "data and model": result.data,
            "attack": result.attack,
            **trained,
            "time": f"{result.seconds:,.0f} seconds of training and scoring",
        }
    )


def _recompute(result: AuditResult) -> str:
    if result.store is None:
        return "<p>The scores were not stored. Computing these numbers again needs a new audit.</p>"
    method = next(iter(result.estimates), "clopper-pearson")
    command = (
        f"lastiterate report {shlex.quote(str(result.store))} --method {shlex.quote(method)} "
        f"--confidence {result.confidence:g} --delta {spell_exact(result.delta)}"
    )
    words = "The estimates use stored scores. Another method, confidence or delta needs no new training:"
    return f"<p>{words}</p><pre><code>{escape(command)}</code></pre>"


def _picture(name: str, chart: PageChart, svg: bytes) -> str:
    image = base64.b64encode(svg).decode()
    shown = f'<img alt="{escape(chart.description)}" src="data:image/svg+xml;base64,{image}">'
    words = f'<span class="soft">{escape(chart.words)}</span>' if chart.words else ""
    caption = f"<figcaption><strong>{escape(chart.title)}</strong>{words}</figcaption>"
    return (
        f'<figure id="{name}">{caption}<div class="chart" role="img" aria-label="{escape(chart.description)}">'
        f"{shown}</div></figure>\n"
    )


def _models(each: Estimate) -> str:
    if each.models_in == each.models_out:
        return f"{each.models_in:,}"
    return f"{each.models_in:,} with, {each.models_out:,} without"


def _least(each: Estimate) -> str:
    bound = math.isfinite(each.epsilon) and THRESHOLDS[each.threshold_choice].is_valid
    return f"{'≥ ' if bound else ''}{spell_epsilon(each.epsilon, found=True)}"


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{content}</section>\n"


def _folded(heading: str, content: str) -> str:
    return f"<details><summary>{escape(heading)}</summary>{content}</details>\n"


def _table(columns: list[str], rows: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _facts(facts: dict[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items()) + "</dl>"
