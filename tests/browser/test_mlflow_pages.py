"""Pages of MLflow in a real browser, for a small sweep that is measured and served.

`make test-browser` runs these tests and needs Chromium. With BROWSER_PICTURES=FOLDER, each page is
also saved to that folder as a picture.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from paradnn import ui
from paradnn.store.address import address_of
from paradnn.store.views import VIEWS, run_link, view_link
from tests.cluster.postgres import free_port, is_well
from tests.conftest import ROOT, TINY, Store, environment, succeeded
from tests.processes import started, wait_for

pytestmark = pytest.mark.browser

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
#: Time limit of a page in milliseconds.
_TIMEOUT_MS = 120_000
_SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9}


class Site(NamedTuple):
    """A served store with one sweep."""

    server: str
    store: Store
    experiment_id: str
    sweep: dict[str, str]
    points: list[dict[str, str]]

    def address_of_run(self, run: dict[str, str], artifact: str = "") -> str:
        """Return the address of a run, or of one of its artifacts."""
        return run_link(self.server, self.experiment_id, run["run_id"], artifact)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        pytest.skip(f"Chromium is missing: no {', '.join(_PROGRAMS)} on the path")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[Site]:
    """Measure a sweep, serve its store with MLflow, and yield the site."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copy(empty_database, folder / "mlflow.db")
    store = Store(folder)
    axes = [option for option in TINY if not option.startswith("batch_size")]
    command = ["paradnn.train", "-m", *axes, "batch_size=4,8,100000000", "sweep.name=shown"]
    succeeded([*command, "measure.memory_limit=1GiB"], store, PARADNN_PAGE="true")
    experiment_id = ui.prepare_views(address_of(store.uri), "paradnn")
    [sweep] = store.runs("sweep")
    subprocess.run(
        [sys.executable, "-m", "analysis", "sweep-page", "--log", "--only", "report"],
        cwd=ROOT,
        env=environment(store),
        check=True,
        capture_output=True,
    )
    port = free_port()
    server = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "paradnn.ui", "--port", str(port)]
    silent = subprocess.DEVNULL
    with started(
        command, cwd=ROOT, env=environment(store, MLFLOW_WORKERS="1"), stdout=silent, stderr=silent
    ):
        assert wait_for(lambda: is_well(server))
        yield Site(server, store, experiment_id, sweep, store.runs())


@pytest.fixture
def opened(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Page]]:
    """Yield a function that opens an address in a new browser profile.

    With BROWSER_PICTURES, save a picture of each page in the end.
    """
    context = browser.new_context(viewport={"width": 1600, "height": 1100})
    context.set_default_timeout(_TIMEOUT_MS)
    expect.set_options(timeout=_TIMEOUT_MS)
    pages: list[Page] = []

    def open_page(address: str) -> Page:
        page = context.new_page()
        pages.append(page)
        page.goto(address)
        return page

    yield open_page
    folder = os.environ.get("BROWSER_PICTURES")
    if folder:
        for page in pages:
            page.wait_for_timeout(1_500)  # wait for the end of animations
            page.screenshot(path=Path(folder) / f"{request.node.name}.png")
    context.close()


def test_the_page_of_a_run_shows_its_name(site: Site, opened: Callable[[str], Page]) -> None:
    page = opened(site.address_of_run(site.points[0]))

    name = site.points[0]["mlflow.runName"]
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    # A new browser profile shows the pages for model training, not those for generative AI.
    expect(page.get_by_role("link", name="Models", exact=True)).to_be_visible()
    expect(page.get_by_text("Evaluation runs")).to_have_count(0)


def test_the_page_of_a_sweep_shows_its_figure(site: Site, opened: Callable[[str], Page]) -> None:
    page = opened(site.address_of_run(site.sweep, "sweep.html"))

    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("heading", name="shown, 3 points")).to_be_visible()
    expect(frame.get_by_text("3 points: 2 ok, 1 oom_predicted.")).to_be_visible()
    figure = frame.locator("#figure-0")
    expect(figure.locator(".main-svg").first).to_be_visible()
    expect(figure.locator(".scatterlayer .point")).to_have_count(3)
    expect(figure.locator(".errorbar")).to_have_count(2)
    # Ticks show whole values, such as 5k, 10k and 20k, and not 5, 10k and 2.
    texts = figure.locator(".ytick text").all_text_contents()
    ticks = [float(text.rstrip("kMG")) * _SUFFIXES.get(text[-1], 1.0) for text in texts]

    assert len(ticks) >= 1
    assert ticks == sorted(ticks)


def test_charts_of_points_are_drawn(site: Site, opened: Callable[[str], Page]) -> None:
    page = opened(view_link(site.server, site.experiment_id, "points", charts=True))

    charts = page.locator(".js-plotly-plot")
    expect(charts.first).to_be_visible()
    # Without peaks there is no utilization, so MLflow hides the two charts of it.
    expect(page.get_by_text(re.compile(r"^Points\s*\(4\)")).first).to_be_visible()
    expect(page.get_by_text("batch_size vs. examples_per_second")).to_be_visible()
    # WebGL draws these points, so they are not elements of the page and only Plotly knows them.
    page.wait_for_function(
        "() => [...document.querySelectorAll('.js-plotly-plot')]"
        ".filter(plot => plot.data?.[0]?.x?.length === 2).length >= 2"
    )


def test_the_table_lists_all_points_and_views(site: Site, opened: Callable[[str], Page]) -> None:
    page = opened(view_link(site.server, site.experiment_id, "points"))

    for point in site.points:
        expect(page.get_by_role("link", name=point["mlflow.runName"])).to_be_visible()
    expect(page.get_by_text("oom_predicted")).to_be_visible()
    page.get_by_test_id("saved-views-trigger").click()
    for view in VIEWS.values():
        expect(page.get_by_text(view.name).last).to_be_visible()


def test_two_runs_are_compared(site: Site, opened: Callable[[str], Page]) -> None:
    ids = ",".join(f'"{point["run_id"]}"' for point in site.points[:2])
    query = f'runs=[{ids}]&experiments=["{site.experiment_id}"]&workflowType=machine_learning'

    page = opened(f"{site.server}/#/compare-runs?{query}")

    expect(page.get_by_role("heading", name="Comparing 2 Runs from 1 Experiment")).to_be_visible()
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    for point in site.points[:2]:
        expect(page.get_by_text(point["mlflow.runName"]).first).to_be_visible()


def test_artifacts_of_a_sweep_are_listed_and_shown(
    site: Site, opened: Callable[[str], Page]
) -> None:
    page = opened(site.address_of_run(site.sweep, "points.json"))

    expect(page.get_by_text("View as table")).to_be_visible()
    expect(page.get_by_text("fc 1x8 b8", exact=True)).to_be_visible()
    for name in ("sweep.html", "report.html"):
        expect(page.get_by_text(name)).to_be_visible()


def test_the_report_of_a_sweep_is_shown(site: Site, opened: Callable[[str], Page]) -> None:
    page = opened(site.address_of_run(site.sweep, "report.html"))

    frame = page.frame_locator("iframe")
    expect(frame.locator("img").first).to_be_visible()


def test_the_page_draws_every_figure_without_a_network(
    site: Site, opened: Callable[[str], Page]
) -> None:
    path = site.store.files(site.sweep["run_id"]) / "sweep.html"
    page = opened("about:blank")
    addresses: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))

    page.goto(path.as_uri())
    figures = page.locator(".figure")
    count = figures.count()
    for number in range(count):
        figures.nth(number).scroll_into_view_if_needed()
        expect(figures.nth(number).locator(".main-svg").first).to_be_visible()

    assert count >= 3
    assert problems == []
    assert [address for address in addresses if re.match(r"(https?|wss?):", address)] == []
