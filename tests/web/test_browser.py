"""The pages in a real browser: Chromium, as it is installed. Where there is none, these tests are skipped."""

import contextlib
import re
import shutil
import subprocess
import sys
import textwrap
from urllib.parse import parse_qs, urlsplit

import axe_playwright_python.sync_playwright as axe_api
import playwright.sync_api as sync_api
import pytest

import lastiterate as li
from lastiterate.citation import risk_sentences
from lastiterate.formatting import spell_up
from tests.web.running import Running

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")

QUIET = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
QUIET += ["--disable-sync", "--no-first-run"]
ONE, SUMMARY, REPORT = "/audits?store=deep/exact.sqlite", "/summary?store=deep/exact.sqlite", "report.html"
READY = {"/": "#picture-noise[data-drawn] svg", "/audits": "#rows tr[data-state=finished]"}
READY |= {ONE: "#figure-errors svg", SUMMARY: ".sign", REPORT: "#errors svg"}
WIDTHS, SCHEMES = (400, 1280, 1600), ("light", "dark")
PATIENCE = 60_000  # milliseconds


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=QUIET)
        yield started
        started.close()


@pytest.fixture
def visit(browser, server, runs):
    """Opens a page; at the end nothing may have gone wrong in it, and nothing may have been asked of others."""
    contexts, wrong, asked = [], [], []

    def open_page(path="/", width=1000, scheme="light", at=None):
        place = at or server
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append((request.url, place.address)))
        context.add_cookies([{"name": f"lastiterate-{place.port}", "value": place.token, "url": place.address}])
        page.goto((runs / path).as_uri() if path == REPORT else place.address + path)
        page.locator("body" if at else READY.get(path, "body")).first.wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [text for text in wrong if "422" not in text] == []  # Chromium tells refusals as errors, too
    assert [url for url, own in asked if not url.startswith((f"{own}/", "data:", "file:"))] == []


def value(page, name):
    return page.locator(f'[data-analysis="{name}"]').inner_text()


def settled(page, name, text):
    """Wait until an analysis says this."""
    place = page.locator(f'[data-analysis="{name}"]')
    sync_api.expect(place).to_have_text(text, timeout=PATIENCE)


def expected(**changes):
    run = li.DPSGD.from_batches(
        **{"dataset_size": 50_000, "batch_size": 512, "epochs": 60, "noise_multiplier": 0.7} | changes
    )
    return {name: spell_up(getattr(li, name)(run).epsilon(1e-5), 3) for name in ("last_iterate", "composition")}


def test_a_slider_moves_and_the_numbers_are_those_of_python(visit):
    page = visit()
    for name, text in expected().items():
        settled(page, name, text)
    page.locator("#noise_multiplier-slider").fill("200")
    noise = float(page.locator("#noise_multiplier").input_value())
    assert noise == pytest.approx((0.1 * 20) ** 0.5, rel=0.01)
    for name, text in expected(noise_multiplier=noise).items():
        settled(page, name, text)
    page.fill("#batch_size", "1024")
    for name, text in expected(noise_multiplier=noise, batch_size=1024).items():
        settled(page, name, text)
    for picture in ("steps", "errors", "noise"):
        page.locator(f"#picture-{picture}[data-drawn] svg").wait_for()
        assert page.locator(f"#picture-{picture} svg path").count() > 3
    page.locator("#baseline").fill("9")
    run = li.DPSGD.from_batches(50_000, 1024, 60, noise)
    for place, words in zip(("members", "risk"), risk_sentences(run, lucky_guesses=0.5), strict=True):
        sync_api.expect(page.locator(f"#{place}-words")).to_have_text(words, timeout=PATIENCE)
    enough = float(li.calibrate(run, epsilon=8.0, delta=1e-5, analysis=li.composition).noise_multiplier)
    sync_api.expect(page.locator('[data-needed="composition"]')).to_have_text(spell_up(enough, 4), timeout=PATIENCE)


def test_an_answer_that_comes_late_never_replaces_a_newer_one(visit):
    page = visit()
    settled(page, "last_iterate", expected()["last_iterate"])
    held = []

    def hold(route):
        if not held:  # the first is answered when all is over
            held.append(route)
        else:
            route.continue_()

    page.route(re.compile("/api/(answer|lines)"), hold)
    page.fill("#noise_multiplier", "0.9")
    page.wait_for_timeout(50)
    page.fill("#noise_multiplier", "1.1")
    settled(page, "last_iterate", expected(noise_multiplier=1.1)["last_iterate"])
    for route in held:
        with contextlib.suppress(sync_api.Error):  # which the page has given up
            route.continue_()
    page.wait_for_timeout(500)
    assert value(page, "last_iterate") == expected(noise_multiplier=1.1)["last_iterate"]


def test_errors_stand_beside_their_fields_and_go_again(visit):
    page = visit()
    settled(page, "last_iterate", expected()["last_iterate"])
    page.fill("#batch_size", "99999999")
    error = page.locator("#batch_size-error")
    sync_api.expect(error).to_have_text("batch size must be in (0, 50000], got 99999999", timeout=PATIENCE)
    assert page.locator("#batch_size").get_attribute("aria-invalid") == "true"
    page.fill("#batch_size", "512")
    sync_api.expect(error).to_be_hidden(timeout=PATIENCE)
    page.fill("#epsilon", "-1")
    sync_api.expect(page.locator("#epsilon-error")).to_contain_text("epsilon must be greater than 0", timeout=PATIENCE)


def test_the_address_holds_all_of_it_and_runs_are_compared(visit):
    page = visit()
    settled(page, "last_iterate", expected()["last_iterate"])
    page.click("#pin")
    page.fill("#noise_multiplier", "1")
    page.click("#advanced summary")
    page.select_option("#neighbours", "replace")
    run = li.DPSGD.from_batches(50_000, 512, 60, 1.0, neighbours="replace")
    settled(page, "composition", spell_up(li.composition(run).epsilon(1e-5), 3))
    marked = page.locator("#compared tr.different th[scope=row]").all_inner_texts()
    names = [text.partition("  ")[0].replace(" differs", "") for text in marked]
    assert names[:2] == ["noise multiplier", "neighbours"]
    assert expected()["composition"] in page.locator("#compared").inner_text()
    query = parse_qs(urlsplit(page.url).query)
    assert query["noise_multiplier"] == ["1"]
    assert page.locator("#link").inner_text() == page.url
    assert "token" not in page.url
    again = visit(f"/?{urlsplit(page.url).query}")
    settled(again, "composition", value(page, "composition"))
    again.locator("#compared mark").first.wait_for()
    assert again.locator("#neighbours").input_value() == "replace"
    again.select_option("#preset", index=1)
    settled(again, "last_iterate", spell_up(li.last_iterate(li.DPSGD(1000, 0.01, 1.0)).epsilon(1e-5), 3))


def test_a_plan_is_a_picture(visit):
    page = visit()
    settled(page, "last_iterate", expected()["last_iterate"])
    page.click("#plan summary")
    page.fill("#batch_sizes", "256,1024")
    page.locator("#picture-planned[data-drawn] svg").wait_for()
    sync_api.expect(page.locator("#plan-table tbody tr")).to_have_count(4, timeout=PATIENCE)


def test_the_keyboard_is_enough(visit):
    page = visit()
    settled(page, "last_iterate", expected()["last_iterate"])
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id"))
        if seen[-1] == "noise_multiplier-slider":
            break
    assert {"preset", "dataset_size", "batch_size", "length", "epochs", "noise_multiplier"} <= set(seen)
    before = value(page, "last_iterate")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    noise = float(page.locator("#noise_multiplier").input_value())
    assert noise > 0.7
    settled(page, "last_iterate", expected(noise_multiplier=noise)["last_iterate"])
    assert value(page, "last_iterate") != before
    while page.evaluate("document.activeElement.id") != "pin":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("#compared table").wait_for()
    while page.evaluate("document.activeElement.dataset.copies") != "command":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#copied")).to_have_text(re.compile("Copied|Selected"), timeout=PATIENCE)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("path", READY)
def test_pages_fit_and_are_accessible(visit, path, scheme):
    page = visit(path, WIDTHS[0], scheme)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe_api.Axe().run(page).response["violations"] if width < WIDTHS[-1] else []
        assert [(each["id"], [node["html"][:90] for node in each["nodes"]][:3]) for each in found] == []


OVERLAPS = """() => [...document.querySelectorAll(".chart svg")].flatMap((svg) => {
    const texts = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
    const shown = texts.filter(([words, box]) => words && box.width);
    const before = (a, b) => a.right <= b.left + 1 || a.bottom <= b.top + 2;
    const apart = (a, b) => before(a, b) || before(b, a);
    return shown.flatMap(([words, box], i) => shown.slice(i + 1)
        .filter(([other, at]) => other !== words && !apart(box, at)).map(([other]) => `${words} / ${other}`));
})"""


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("path", ["/", ONE, REPORT])
def test_no_label_of_a_chart_overlaps_another(visit, path, width):
    page = visit(path, width)
    for folded in page.locator("main > details, article > details, #plan").all():
        folded.locator("summary").first.click()
    for chart in page.locator(".chart:visible").all():
        chart.locator("svg").wait_for()
    assert page.locator(".chart svg").count() >= 3
    assert page.evaluate(OVERLAPS) == []


def test_the_three_numbers_stay_in_view_in_their_order(visit):
    page = visit("/", 400)
    settled(page, "last_iterate", expected()["last_iterate"])
    page.evaluate("scrollTo(0, 900)")
    assert page.locator("#tiles h3").all_inner_texts() == ["Guaranteed", "Predicted", "Found"]
    box = page.locator("#tiles").bounding_box()
    assert box["y"] + box["height"] == pytest.approx(900, abs=2)
    assert all(hint for hint in page.locator(".field:visible .hint").all_inner_texts())


@pytest.mark.parametrize(("path", "most"), [(SUMMARY, 1), (ONE, 2), (REPORT, 2)])
def test_a_summary_prints_on_one_page_and_an_audit_on_two(visit, path, most):
    page = visit(path)
    paper = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type /Page\b(?!s)", paper)) <= most
    assert "May I sign?" in page.inner_text("main")


AUDIT = """
    import sys, time
    import numpy as np
    import lastiterate as li

    run = li.DPSGD(steps=4, sample_rate=0.5, noise_multiplier=1.0)

    def train(seed, canary):
        time.sleep(0.12)
        rng = np.random.default_rng([seed, canary])
        return float(canary * (rng.random(4) < 0.5).sum() + 2.0 * rng.normal())

    li.audit(run, train, models=40, store=sys.argv[1], methods=["clopper-pearson"], progress=False)
"""


def test_an_audit_is_watched_from_its_first_model_to_its_verdict(visit, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    running = Running("watch", str(folder))
    try:
        page = visit("/audits", at=running)
        sync_api.expect(page.locator("#rows")).to_contain_text("There is no store here yet", timeout=PATIENCE)
        script = tmp_path / "mine.py"
        script.write_text(textwrap.dedent(AUDIT))
        auditing = subprocess.Popen([sys.executable, str(script), str(folder / "mine.sqlite")])
        try:
            page.locator("#rows tr[data-state=running]").wait_for()
            page.click("#rows tbody a")
            counts = []
            while auditing.poll() is None:
                counts.append(page.locator("#progress progress").evaluate_all("bars => bars.map(bar => bar.value)"))
                page.wait_for_timeout(200)
            assert auditing.returncode == 0
        finally:
            auditing.kill()
            auditing.wait()
        sync_api.expect(page.locator("#state")).to_contain_text("finished", timeout=PATIENCE)
        sync_api.expect(page.locator("body")).to_have_attribute("data-done", "80", timeout=PATIENCE)
        seen = [bar[0] for bar in counts if bar]
        assert seen == sorted(seen)
        assert any(0 < done < 80 for done in seen)
        result = running.json("/api/audits/one", store="mine.sqlite", width="400")[1]
        assert result["headline"] in page.locator("#verdict").inner_text()
        page.locator("#figure-growth svg").wait_for(state="attached")
        assert "lastiterate report" in page.locator("#more").inner_html()
        page.close()
    finally:
        running.stop()
