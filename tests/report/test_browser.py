"""The page in a real browser: it asks the network for nothing, complains of nothing, and fits a phone and a desk.

MARKOV_SPEC_SCREENSHOTS names a folder that keeps what it looked like.
"""

import base64
import json
import os
import shutil
from pathlib import Path

import pytest

import markov_spec as ms

pytestmark = pytest.mark.slow
SECTIONS = ("contenders", "pairs", "acceptance", "rounds", "sweep", "where", "rollouts", "method")
CONTENDERS = ["quant5", "drop1", "block:tree=best-first,budget=64", "drop3", "lookup", "quant5:K=8,rule=block"]
SIZES = {"phone": 390, "desk": 1280}
SCREENSHOTS = os.environ.get("MARKOV_SPEC_SCREENSHOTS")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    found = ms.study("data/demo", CONTENDERS)
    return ms.write_report(found, tmp_path_factory.mktemp("page") / "report.html", command="markov-spec compare <x>")


@pytest.fixture(params=SIZES)
def browser(request):
    if shutil.which("chromedriver") is None or shutil.which("chromium") is None:
        pytest.skip("no browser: Debian's chromium and chromium-driver are not installed")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    width = SIZES[request.param]
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
    ):
        options.add_argument(word)
    if request.param == "phone":
        metrics = {"width": width, "height": 844, "pixelRatio": 2.0, "mobile": True, "touch": True}
        options.add_experimental_option("mobileEmulation", {"deviceMetrics": metrics})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.kind = request.param
    yield driver
    driver.quit()


def _opened(browser, page, scheme="light"):
    from selenium.webdriver.support.ui import WebDriverWait

    media = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    browser.get(page.as_uri())
    drawn = "return [...document.querySelectorAll('figure[data-chart]')].every(own => own.querySelector('svg'))"
    WebDriverWait(browser, 30).until(lambda own: own.execute_script(drawn))


def test_page_is_quiet_and_whole_invariant(browser, page):
    _opened(browser, page)
    loud = [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert not loud
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [page.as_uri()]
    for name in SECTIONS:
        assert browser.execute_script("return document.getElementById(arguments[0]).innerText.length > 80", name), name
    described = "return [...document.querySelectorAll('figure')].map(own => own.getAttribute('aria-label').length)"
    lengths = browser.execute_script(described)
    assert len(lengths) == 5 and min(lengths) > 10
    legends = "return [...document.querySelectorAll('figure .chip')].length"
    assert browser.execute_script(legends) == 3 * len(CONTENDERS) + 5  # the chains' own in the sweep


def test_page_fits_invariant(browser, page):
    for scheme in ("light", "dark"):
        _opened(browser, page, scheme)
        if SCREENSHOTS:
            height = browser.execute_script("return document.documentElement.scrollHeight")
            clip = {"x": 0, "y": 0, "width": SIZES[browser.kind], "height": height, "scale": 1}
            shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
            (Path(SCREENSHOTS) / f"{browser.kind}-{scheme}.png").write_bytes(base64.b64decode(shot["data"]))
        sizes = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert sizes[0] <= sizes[1] == SIZES[browser.kind]
        wide = """return [...document.querySelectorAll('figure svg, h1, h2, h3, p, .card, .chips')].filter(
            own => own.getBoundingClientRect().right > window.innerWidth + 1).map(own => own.outerHTML.slice(0, 80))"""
        assert browser.execute_script(wide) == []
        colors = browser.execute_script(
            "const own = getComputedStyle(document.body); return [own.color, own.backgroundColor].map(color =>"
            " color.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 3)"
        )
        assert (colors[1] > 200 > 60 > colors[0]) if scheme == "light" else (colors[0] > 200 > 60 > colors[1])


def test_columns_sort_invariant(browser, page):
    _opened(browser, page)
    read = """return [...document.querySelector('#contenders table').tBodies[0].rows].map(
        row => row.cells[arguments[0]].dataset.value ?? row.cells[arguments[0]].textContent)"""
    button = """const heads = [...document.querySelector('#contenders table').tHead.rows[0].cells];
        const head = heads.find(own => own.innerText == arguments[0]);
        head.querySelector('button').click(); return [head.cellIndex, head.getAttribute('aria-sort')]"""
    column, order = browser.execute_script(button, "pooled")
    values = [float(value) for value in browser.execute_script(read, column)]
    assert order == "descending" and values == sorted(values, reverse=True) and len(set(values)) == len(CONTENDERS)
    column, order = browser.execute_script(button, "pooled")
    assert order == "ascending" and [float(value) for value in browser.execute_script(read, column)] == sorted(values)
    column, order = browser.execute_script(button, "contender")
    assert order == "ascending" and sorted(browser.execute_script(read, column)) == browser.execute_script(read, column)


def test_a_token_tells_its_figures_invariant(browser, page):
    _opened(browser, page)
    click = "document.querySelector('.trace i').click(); return document.getElementById('told').textContent"
    assert "from the drafter" in browser.execute_script(click) and " %" in browser.execute_script(click)
