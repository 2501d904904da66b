"""One-page summary of an audit for its signer, as HTML or Markdown, with the same facts as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from lastiterate.auditing.evidence.audit_result import KeyNumber
from lastiterate.auditing.evidence.forecast import CHANCE
from lastiterate.common.atomic_write import check_writable, write_whole
from lastiterate.common.types import Fields
from lastiterate.formatting import per_cent, spell_exact
from lastiterate.plot.page_assets import escape, html_page, strength_bar, tiles, verdict_box

FORMATS = (".html", ".md")
TITLE = "Privacy of a training run: summary of an audit"
_CAVEAT = "An audit finds lower bounds for one attack. It can refute a claim of privacy, but it cannot prove one."


def check_summary(path: Path) -> list[Path]:
    """Return the paths of the summary and of its JSON file. Raise an error if they could not be written."""
    must = f"--summary must end in {' or '.join(FORMATS)}, got {str(path)!r}"
    if path.suffix.lower() == ".pdf":
        raise ValueError(f"{must}: write the .html, open it in a browser and print it to PDF; it fits on one page")
    if path.suffix.lower() not in FORMATS:
        raise ValueError(must)
    files = [path, path.with_suffix(".json")]
    for file in files:
        check_writable(file, "summary")
    return files


def write_summary(card: Fields, path: Path) -> None:
    """Write the summary in the format of the file's suffix, and the same facts to a JSON file in the same folder."""
    shown = summary_page(card) if path.suffix.lower() == ".html" else summary_markdown(card)
    write_whole(path, shown.encode(), "summary")
    beside = json.dumps(card, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    write_whole(path.with_suffix(".json"), beside.encode(), "card")


def summary_page(card: Fields) -> str:
    """Return the summary as one page of HTML, which prints on one page of paper."""
    caveats = "".join(f"<li>{escape(each)}</li>" for each in [*card["caveats"], _CAVEAT])
    terms = [(name, [words]) for name, words in card["terms"].items()]
    body = [
        f"<h1>{escape(card['name']) or TITLE}</h1>",
        f'<p class="soft">{TITLE}</p>' if card["name"] else "",
        verdict_box(card["verdict"], card["headline"], card["strength"]["words"], card["reason"]),
        f'<p class="advice"><strong>May I sign?</strong> {escape(card["advice"])}</p>',
        tiles((KeyNumber(**each) for each in card["numbers"]), spell_exact(card["delta"])),
        "".join(f'<p class="risk">{escape(each)}</p>' for each in card["risk"]["words"]),
        strength_bar(card["strength"]["caught"], card["strength"]["words"], per_cent(CHANCE)),
        _list(_facts(card, brief=True)),
        f'<h2>What to know</h2><ul class="small">{caveats}</ul>',
        f'<div class="small">{_list(_origins(card))}</div>',
        f'<h2>Terms</h2><div class="small">{_list(terms)}</div>',
        '<div class="sign"><div>Name</div><div>Signature</div><div>Date</div></div>',
    ]
    return html_page(TITLE, "summary.css", "".join(body), head='<link rel="icon" href="data:,">\n')


def summary_markdown(card: Fields) -> str:
    """Return the summary as Markdown."""
    words = " ".join(_m(each) for each in (card["reason"], card["strength"]["words"]))
    lines = [f"# {_m(card['name']) or TITLE}", "", f"**{_m(card['headline'])}** {words}"]
    lines += ["", f"**May I sign?** {_m(card['advice'])}"]
    lines += [line for each in card["risk"]["words"] for line in ("", _m(each))]
    lines += ["", "| | |", "|---|---|"]
    lines += [f"| {name} | {'<br>'.join(map(_m, texts))} |" for name, texts in _facts(card)]
    lines += ["", "## What to know", "", *(f"- {_m(each)}" for each in [*card["caveats"], _CAVEAT])]
    lines += ["", "## Where it comes from", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {'<br>'.join(map(_m, texts))} |" for name, texts in _origins(card)]
    lines += ["", "## Terms", "", *(f"- **{name}**: {words}" for name, words in card["terms"].items())]
    lines += ["", "Name: ______________________ Signature: ______________________ Date: ______________", ""]
    return "\n".join(lines)


Facts = list[tuple[str, list[str]]]


def _facts(card: Fields, *, brief: bool = False) -> Facts:
    """Return the facts. ``brief`` leaves out the numbers that the page shows as tiles, and the families."""
    models = card["models"]
    numbers = [
        (f"guaranteed, at delta {spell_exact(card['delta'])}", [_words(card, "guaranteed")]),
        ("predicted", [_words(card, "predicted")]),
        ("found by the attack", [each["words"] for each in card["found"]]),
        ("power", [_words(card, "power")]),
    ]
    return [
        *((name, [card[name]]) for name in ("owner", "notes") if card[name]),
        ("trained", [card["trained"], card["run_words"]]),
        ("released", [card["released"]]),
        ("unit of privacy", [card["unit_of_privacy"]]),
        ("neighbours", [f"{card['neighbours']}: {card['neighbours_words']}"]),
        *([] if brief else numbers),
        ("attack", [f"{card['attack']}; {models['in']:,} scores with the canary and {models['out']:,} without"]),
    ]


def _origins(card: Fields) -> Facts:
    versions = ", ".join(f"{name} {version}" for name, version in card["versions"].items())
    return [
        ("audited", [f"{_date(card['audited'] or 'date not known')}; summarised {_date(card['summarised'])}"]),
        ("versions", [versions or "not known"]),
        ("seed", ["not known" if card["seed"] is None else str(card["seed"])]),
        ("store", [f"{card['store']}, {card['digest']}"]),
    ]


def _date(text: str) -> str:
    return f"{text[:16].replace('T', ' ')} UTC" if text.endswith("+00:00") else text


def _words(card: Fields, name: str) -> str:
    held = card[name]
    return f"none: {card[f'{name}_reason']}" if held is None else str(held["words"])


def _list(facts: Facts) -> str:
    shown = "".join(
        f"<dt>{escape(name)}</dt><dd>{''.join(f'<p>{escape(text)}</p>' for text in texts)}</dd>"
        for name, texts in facts
    )
    return f"<dl>{shown}</dl>"


def _m(text: str) -> str:
    return "".join(f"\\{each}" if each in "\\`*_[]<>|#" else each for each in text)
