"""How the web page of an audit looks: on a desk, on a phone, in the dark and on paper."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #555; --line: #d8d8d8; --paper: #fff; --shade: #f5f5f5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --soft: #aaa; --line: #444; --paper: #181818; --shade: #242424; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 Helvetica, Arial, "Liberation Sans", "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p, li, dd { max-width: 46rem; overflow-wrap: anywhere; }
.verdict { border-left: .4rem solid; padding: .7rem 1rem; background: var(--shade); }
.verdict p { margin: .3rem 0; }
.verdict .word { font-size: 1.15rem; font-weight: bold; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .9rem .4rem 0; border-bottom: 1px solid var(--line); }
thead th:nth-child(2) { white-space: nowrap; }
thead th { color: var(--soft); font-weight: normal; vertical-align: bottom; }
tbody th { font-weight: bold; } td { font-variant-numeric: tabular-nums; min-width: 4.5rem; }
dl { margin: 1rem 0; } dt { color: var(--soft); margin-top: .6rem; } dd { margin: 0; }
figure { margin: 1rem 0; padding: .3rem; background: #fff; border: 1px solid var(--line); border-radius: 4px; }
figure img, figure svg { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figure.vega-embed { display: block; }
@media screen and (max-width: 40rem) { figure { overflow-x: auto; } figure img, figure svg { min-width: 36rem; } }
pre { background: var(--shade); padding: .8rem; overflow-x: auto; }
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --shade: #fff; }
  main { max-width: none; padding: 0; } figure, tr, .verdict { break-inside: avoid; } body { font-size: 11pt; }
  table { font-size: 8.5pt; } pre { white-space: pre-wrap; }
}
"""
