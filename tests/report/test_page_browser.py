"""The page in a real browser: it renders, its controls work, and its numbers are those that Python works out."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedpd.engine.views.entries import COSTS, Entry, goal, short_number
from fedpd.report.pages import page_of
from fedpd.report.reach import Reached, finding, reach, targets
from tests.report.recordings import diverging, entry, record

driver = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")

QUIET = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync"""
NASTY = "<script>window.hurt = 1</script> <b>bold</b> &amp; 'quoted'"

ONE = [entry("Alone", 0.1)]
FEW = [
    entry(NASTY, 0.2, 0.25, accuracy=True),
    entry("Rarely", 0.1, 0.1, every=4, accuracy=True),
    entry("Never", 0.001, 0.002, accuracy=True),
]
OWN = [entry("Own", 0.1)]
OWN[0].runs[0].history["mean_error"] = OWN[0].runs[0].history["loss"] - 1
MANY = [entry(f"Method {i}", 0.05 + 0.01 * i, 0.06 + 0.01 * i) for i in range(39)] + [diverging("Explodes")]

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {"one": ONE, "few": FEW, "many": MANY, "own": OWN}
    return {name: page_of([record(*entries)]).save(folder / f"{name}.html") for name, entries in made.items()}


@pytest.fixture
def open_page(browser: Any, files: dict[str, Path]) -> Iterator[Open]:
    """Opens a page without a network; whatever it complains of or asks for fails the test."""
    complaints: list[str] = []
    requests: list[str] = []
    contexts = []

    def open_page(name: str, **options: Any) -> Any:
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(files[name].as_uri())
        page.wait_for_selector("#figure .main-svg")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints
    assert all(re.match("(file|data|blob):", url) for url in requests), requests


def slide(page: Any, number: int) -> None:
    page.eval_on_selector(
        "#target", "(slider, n) => { slider.value = n; slider.dispatchEvent(new Event('input')); }", number
    )


def rows(page: Any) -> list[list[str]]:
    return page.eval_on_selector_all(
        "#costs tbody tr", "all => all.map(r => [...r.cells].map(c => c.innerText.trim()))"
    )


def curves(page: Any) -> int:
    return page.evaluate("document.getElementById('figure').data.filter(t => t.hoverinfo !== 'skip').length")


def layout(page: Any) -> Any:
    return page.evaluate("(({xaxis, yaxis, font}) => ({x: xaxis.title.text, xtype: xaxis.type, ytype: yaxis.type, "
                         "colour: font.color}))(document.getElementById('figure').layout)")  # fmt: skip


def cells(met: Reached) -> list[str]:
    """What a row of the table says, by Python's own account."""
    assert met.costs is not None
    shown = []
    for cost in COSTS:
        write = {
            "communications": lambda n: f"{n:,.0f}" if n == int(n) or n >= 100 else f"{n:.1f}",
            "seconds": lambda n: f"{n:.3g} s",
            "bytes": lambda n: short_number(n, "B"),
        }.get(cost, short_number)
        mean, least, most = met.costs[cost]
        shown.append(write(mean) + (f"\n{write(least)} to {write(most)}" if least != most else ""))
    return shown


def check_table(page: Any, entries: list[Entry], measure: str, target: float, by: str = "communications") -> None:
    met = {one.label: reach(one, measure, target) for one in entries}
    found = rows(page)
    there = sorted(m.costs[by][0] for m in met.values() if m.costs is not None)
    assert {row[0] for row in found} == set(met)
    for place, row in enumerate(found):
        one = met[row[0]]
        if one.costs is None:
            assert place >= len(there)
            assert row[1].startswith("not reached: ")
        else:
            assert row[1:5] == cells(one)
            assert one.costs[by][0] == there[place], "the cheapest first"
            assert float(row[5].rstrip("×")) == pytest.approx(there[place] / there[0], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "entries"), [("one", ONE), ("few", FEW), ("many", MANY)])
def test_it_renders_and_the_slider_moves_table_and_finding(open_page: Open, name: str, entries: list[Entry]) -> None:
    page = open_page(name)
    assert curves(page) == (len(entries) if len(entries) <= 12 else 5), "and all of them in the table"
    assert page.locator("#methods button:not(.all)").count() == len(entries)
    assert page.locator("#distances-0 .main-svg").count() > 0
    offered = targets(entries, "stationarity")
    assert int(page.get_attribute("#target", "max")) == len(offered) - 1
    for number in {3, len(offered) // 2, len(offered) - 1}:
        slide(page, number)
        assert page.inner_text("#goal") == goal("stationarity", offered[number])
        assert page.inner_text("#finding") == finding(entries, "stationarity", offered[number])
        check_table(page, entries, "stationarity", offered[number])


def test_measures_axes_and_methods_are_chosen(open_page: Open) -> None:
    page = open_page("few")
    assert layout(page) | {"colour": ""} == {
        "x": COSTS["communications"].words, "xtype": "linear", "ytype": "log", "colour": "",
    }  # fmt: skip
    for cost in ("samples", "bytes", "seconds"):
        page.click(f"#x button[data-name={cost}]")
        assert (layout(page)["x"], layout(page)["xtype"]) == (
            COSTS[cost].words,
            "linear" if cost == "seconds" else "log",
        )
        target = targets(FEW, "stationarity")[page.evaluate("Number(document.getElementById('target').value)")]
        check_table(page, FEW, "stationarity", target, by=cost)
    page.check("#log-x")
    page.uncheck("#log-y")
    assert (layout(page)["xtype"], layout(page)["ytype"]) == ("log", "linear")
    page.click("#y button[data-name=test_accuracy]")
    assert layout(page)["ytype"] == "linear"
    offered = targets(FEW, "test_accuracy")
    slide(page, len(offered) // 2)
    assert page.inner_text("#finding") == finding(FEW, "test_accuracy", offered[len(offered) // 2], COSTS["seconds"])
    check_table(page, FEW, "test_accuracy", offered[len(offered) // 2], by="seconds")


def test_methods_are_toggled_and_labels_are_only_ever_text(open_page: Open) -> None:
    page = open_page("few")
    page.click("#methods button:nth-child(2)")
    assert curves(page) == 2
    assert page.locator("#costs tr.off").count() == 1
    assert page.get_attribute("#methods button:nth-child(2)", "aria-pressed") == "false"
    page.click("#methods button:nth-child(2)")
    assert curves(page) == 3
    page.click("text=none")
    assert curves(page) == 0
    page.click("#methods >> text=all")
    assert curves(page) == 3
    assert page.locator("b", has_text="bold").count() == 0
    assert page.inner_text("#methods button:first-child") == NASTY
    page.hover("#figure .nsewdrag", position={"x": 60, "y": 60})
    page.wait_for_selector("#figure .hovertext")
    assert re.search(r"round \d+", page.text_content("#figure .hovertext"))
    assert page.evaluate("window.hurt") is None
    name = page.evaluate("document.getElementById('figure').data.find(t => t.name).name")
    assert name.startswith("&lt;script&gt;")


def test_a_quantity_without_a_direction_has_curves_only(open_page: Open) -> None:
    page = open_page("own")
    page.click("#y button[data-name=mean_error]")
    assert page.inner_text("#y button[data-name=mean_error]") == "mean error"
    assert not page.is_visible("#cost-to-target")
    assert "only curves" in page.inner_text("#finding")
    assert curves(page) == 1
    page.click("#y button[data-name=stationarity]")
    assert page.is_visible("#cost-to-target")
    check_table(page, OWN, "stationarity", 1e-10)


def test_a_phone_shows_forty_runs_without_scrolling_sideways(open_page: Open) -> None:
    page = open_page("many", viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("#figure .main-svg").first.bounding_box()
    assert 300 < box["width"] <= 390
    assert page.locator("#figure .modebar-btn").count() == 0, "it would cover the title of the axis"
    page.tap("#x button[data-name=bytes]")
    assert layout(page)["x"] == COSTS["bytes"].words


def test_dark_and_light_and_print_are_followed(open_page: Open) -> None:
    page = open_page("one", color_scheme="dark")
    assert layout(page)["colour"] == "#e8ebee"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 27)"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert layout(page)["colour"] == "#000000"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert layout(page)["colour"] == "#e8ebee"
    page.emulate_media(color_scheme="light")
    until = time.monotonic() + 10
    while layout(page)["colour"] != "#1b1f24" and time.monotonic() < until:
        page.wait_for_timeout(50)
    assert layout(page)["colour"] == "#1b1f24"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.slow
def test_names_stand_at_the_ends_of_curves_and_ticks_do_not_overlap(open_page: Open) -> None:
    page = open_page("few")
    page.click("#x button[data-name=samples]")
    page.wait_for_function("document.querySelectorAll('#figure .annotation').length === 4")
    ticks = [tick.bounding_box() for tick in page.locator("#figure .xtick text").all()]
    ticks.sort(key=lambda box: box["x"])
    assert len(ticks) >= 2
    assert all(left["x"] + left["width"] < right["x"] for left, right in pairwise(ticks))


def test_many_runs_are_filtered_sorted_and_drawn(open_page: Open) -> None:
    page = open_page("many")
    texts = "all => all.map(r => [...r.cells].map(c => c.innerText.trim()))"
    assert len(page.eval_on_selector_all("#all-runs tbody tr", texts)) == len(MANY)
    page.fill("#filter", "method 3")
    found = page.eval_on_selector_all("#all-runs tbody tr", texts)
    assert {row[0] for row in found} == {one.label for one in MANY if "3" in one.label}
    page.click("#only")
    assert curves(page) == len(found) == 12
    page.click("#all-runs th:has-text('stationarity')")
    values = [float(row[-7]) for row in page.eval_on_selector_all("#all-runs tbody tr", texts)]
    assert values == sorted(values)
    page.click("#all-runs tbody tr:first-child input")
    assert curves(page) == 11


def test_few_runs_have_no_table_of_all_runs(open_page: Open) -> None:
    assert not open_page("few").is_visible("#runs")
