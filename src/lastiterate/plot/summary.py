"""One-page summary of an audit for its signer, as HTML or Markdown, with the same facts as JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

from lastiterate.common.atomic_write import check_writable, write_whole
from lastiterate.common.types import Fields
from lastiterate.formatting import spell_exact
from lastiterate.plot.page_assets import BASE
from lastiterate.plot.style import verdict_colour

FORMATS = (".html", ".md")
TITLE = "Privacy of a training: summary of an audit"
_STYLE = """
@page { size: A4; margin: 13mm; }
main { max-width: 50rem; padding-top: 1.2rem; } h1 { font-size: 1.45rem; } h2 { font-size: 1rem; margin: 1rem 0 .2rem; }
dl { display: grid; grid-template-columns: 10.5rem 1fr; gap: .25rem 1rem; margin: .6rem 0; }
dt { margin: 0; } dd { max-width: none; } dd p { margin: 0 0 .2rem; max-width: none; } .verdict p { max-width: none; }
.small { font-size: .82rem; color: var(--soft); } .small dl { gap: .1rem 1rem; }
ul.small { margin: .2rem 0; padding-left: 1.1rem; } .small li { max-width: none; }
.sign { display: grid; grid-template-columns: 2fr 2fr 1fr; gap: 2rem; margin-top: 2.6rem; }
.sign div { border-top: 1px solid var(--ink); padding-top: .2rem; font-size: .85rem; }
@media (max-width: 40rem) { dl { display: block; } dt { margin-top: .5rem; } .sign { gap: 1rem; } }
@media print {
  body { font-size: 9.3pt; line-height: 1.35; } main { max-width: none; padding: 0; } .verdict { padding: .4rem .8rem; }
  h1 { font-size: 14pt; margin-bottom: .5rem; } h2 { margin-top: .6rem; } .small { font-size: 8pt; }
}
"""


def check_summary(path: Path) -> list[Path]:
    """Return the paths of the summary and of the card beside it. Raise early if they cannot be written."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"--summary must end in {' or '.join(FORMATS)}, got {str(path)!r}")
    files = [path, path.with_suffix(".json")]
    for file in files:
        check_writable(file, "summary")
    return files


def write_summary(card: Fields, path: Path) -> None:
    """Write the summary in the format of the file's suffix, and the card as JSON beside it."""
    shown = summary_page(card) if path.suffix.lower() == ".html" else summary_markdown(card)
    write_whole(path, shown.encode(), "summary")
    beside = json.dumps(card, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    write_whole(path.with_suffix(".json"), beside.encode(), "card")


def summary_page(card: Fields) -> str:
    """Return the summary as one page of HTML, which prints on one page of paper."""
    colour = verdict_colour(card["verdict"])
    caveats = "".join(f"<li>{_e(each)}</li>" for each in _caveats(card))
    terms = [(name, [words]) for name, words in card["terms"].items()]
    body = "".join(
        [
            f"<h1>{TITLE}</h1>",
            f'<div class="verdict" style="border-color: {colour}"><p class="word">Verdict: {_e(card["verdict"])}</p>',
            f"<p>{_e(card['reason'])} {_e(card['strength']['words'])}</p><p>{_e(card['verdict_words'])}</p></div>",
            _list(_facts(card)),
            f'<h2>What to know</h2><ul class="small">{caveats}</ul>',
            f'<div class="small">{_list(_origins(card))}</div>',
            f'<h2>Terms</h2><div class="small">{_list(terms)}</div>',
            '<div class="sign"><div>Name</div><div>Signature</div><div>Date</div></div>',
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{TITLE}</title>\n<style>{BASE}{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def summary_markdown(card: Fields) -> str:
    """Return the summary as Markdown."""
    words = " ".join(_m(each) for each in (card["reason"], card["strength"]["words"], card["verdict_words"]))
    lines = [f"# {TITLE}", "", f"**Verdict: {_m(card['verdict'])}.** {words}"]
    lines += ["", "| | |", "|---|---|"]
    lines += [f"| {name} | {'<br>'.join(map(_m, texts))} |" for name, texts in _facts(card)]
    lines += ["", "## What to know", "", *(f"- {_m(each)}" for each in _caveats(card))]
    lines += ["", "## Where it comes from", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {'<br>'.join(map(_m, texts))} |" for name, texts in _origins(card)]
    lines += ["", "## Terms", "", *(f"- **{name}**: {words}" for name, words in card["terms"].items())]
    lines += ["", "Name: ______________________ Signature: ______________________ Date: ______________", ""]
    return "\n".join(lines)


Facts = list[tuple[str, list[str]]]


def _facts(card: Fields) -> Facts:
    models = card["models"]
    return [
        ("trained", [card["trained"], card["run_words"]]),
        ("released", [card["released"]]),
        ("unit of privacy", [card["unit_of_privacy"]]),
        ("neighbours", [f"{card['neighbours']}: {card['neighbours_words']}"]),
        (f"guaranteed, at delta {spell_exact(card['delta'])}", [_words(card, "guaranteed")]),
        ("predicted", [_words(card, "predicted")]),
        ("found by the attack", [each["words"] for each in card["found"]]),
        ("power", [_words(card, "power")]),
        ("attack", [f"{card['attack']}; {models['in']:,} scores with the canary and {models['out']:,} without"]),
    ]


def _origins(card: Fields) -> Facts:
    versions = ", ".join(f"{name} {version}" for name, version in card["versions"].items())
    return [
        ("audited", [f"{card['audited'] or 'date not known'}; summarised {card['summarised']}"]),
        ("versions", [versions or "not known"]),
        ("seed", ["not known" if card["seed"] is None else str(card["seed"])]),
        ("store", [f"{card['store']}, {card['digest']}"]),
    ]


def _words(card: Fields, name: str) -> str:
    held = card[name]
    return f"none: {card[f'{name}_reason']}" if held is None else str(held["words"])


def _caveats(card: Fields) -> Sequence[str]:
    """Return the caveats for the signer: of this audit, then of all audits."""
    general = "An audit finds lower bounds for one attack: it can refute a claim of privacy, and cannot prove one."
    return [*card["caveats"], general]


def _list(facts: Facts) -> str:
    shown = "".join(
        f"<dt>{_e(name)}</dt><dd>{''.join(f'<p>{_e(text)}</p>' for text in texts)}</dd>" for name, texts in facts
    )
    return f"<dl>{shown}</dl>"


def _e(text: str) -> str:
    return html.escape(text)


def _m(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    return "".join(f"\\{each}" if each in "\\`*_[]<>|#" else each for each in text)
