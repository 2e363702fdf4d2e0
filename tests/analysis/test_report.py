"""The HTML report: well-formed pages, populations, sections, tables and hostile names."""

import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from analysis.options import Selection
from analysis.report import make_report
from analysis.report.build import ui_address
from analysis.report.comparisons import describe_side
from analysis.report.populations import split
from analysis.report.results import frame_table
from analysis.report.sections import Context, outline
from tests.analysis.planted import grid, runs

HOSTILE = "<script>alert(\"x\")</script> & 'quoted'"
#: Void elements of HTML, which have no end tag.
VOID = {"meta", "wbr", "img", "br"}


class Page(HTMLParser):
    """Parser of a page, which collects its elements and its text.

    Raises AssertionError if a tag is not closed.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open_tags[-1:] not in (["script"], ["style"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def attributes_of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page() -> str:
    """Return the report of 16 profiled points on one device with TensorFlow 2.9 and 2.16.

    The newer version is twice as fast. Some names contain hostile markup.
    """
    points = grid(nodes=(64,), layers=(1, 2, 4, 8), batches=(16, 32, 64, 128))
    layers, batch = (points[name].astype("float64") for name in ("model.layers", "batch_size"))
    is_largest = (layers == 8) & (batch == 128)
    sides = []
    for number, (version, gain) in enumerate((("2.9", 1.0), ("2.16", 2.0))):
        speed = (gain * 1000 * batch**0.5 / layers).where(~is_largest)
        speeds = {
            "examples_per_second": speed,
            "flops_per_second": 1e6 * layers * speed,
            "parameters": 1e4 * layers,
        }
        shares = {
            "category_share.matmul": 0.5,
            "op_share.MatMul": 0.5,
            "category_share.control": 0.1 * layers,
        }
        costs = {
            "phase_measure_seconds": 1.0,
            "phase_start_seconds": 0.25,
            "flops_per_step": 1e6 * layers * batch,
        }
        hostile_names = dict.fromkeys(("data.name", "host", "run_name"), HOSTILE)
        outcomes = {
            "outcome": np.where(is_largest, "oom_host", "ok"),
            "reason": is_largest.map({True: HOSTILE, False: None}),
        }
        identity = {
            "device": "Test CPU, 2 cores",
            "artifact_uri": "",
            "replicate": 0,
            "version.tensorflow": version,
        }
        session = {
            "start_time": pd.Timestamp(f"2026-01-0{number + 1}", tz="UTC"),
            "environment_id": f"env-{version}",
        }
        columns = {
            **speeds,
            **shares,
            **costs,
            **hostile_names,
            **outcomes,
            **identity,
            **session,
        }
        sides.append(runs(points, **columns))
    return make_report(pd.concat(sides, ignore_index=True), Selection())


def parse_valid_page(text: str) -> Page:
    """Parse a page and assert that it is valid and safe.

    A page is well-formed with unique ids, fetches nothing, and permits only its own script.
    """
    found = Page(text)
    assert found.open_tags == []
    ids = [attributes["id"] or "" for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch("[A-Za-z0-9_.-]+", name) for name in ids)
    links = {attributes["href"] or "" for attributes in found.attributes_of("a")}
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert all(link.startswith(("#", "http://h/")) for link in links)
    fetching = {"src", "srcset", "data", "action", "poster"}
    loading = [
        attributes[name] or ""
        for _, attributes in found.tags
        for name in fetching & attributes.keys()
    ]
    assert all(value.startswith("data:image/") for value in loading)
    assert not [
        name for _, attributes in found.tags for name in attributes if name.startswith("on")
    ]
    assert not found.attributes_of("link")
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "default-src 'none'" in text
    assert (len(found.attributes_of("script")), len(found.attributes_of("h1"))) == (1, 1)
    return found


@pytest.fixture(scope="module")
def parsed(page: str) -> Page:
    return parse_valid_page(page)


def test_populations_are_separate_and_compared(parsed: Page) -> None:
    # The newer version runs the same points twice as fast.
    assert (
        "Test CPU, 2 cores, tensorflow 2.16 runs 2 times as fast as Test CPU, 2 cores, tensorflow 2.9"
        in parsed.text
    )
    assert "over 15 points that both measured" in parsed.text
    assert "--tag environment_id=env-2.9" in parsed.text


def test_every_figure_has_a_caption(parsed: Page) -> None:
    figures = parsed.attributes_of("img")

    assert len(figures) > 10
    assert all(len(figure["alt"] or "") > 40 for figure in figures)


def test_sections_are_in_order(page: str) -> None:
    positions = [
        page.index(f'id="{name}"')
        for name in ("verdict", "throughput", "results", "measured", "p1", "missing")
    ]

    assert positions == sorted(positions)


def test_a_point_that_failed_in_both_populations_is_counted_once(parsed: Page) -> None:
    assert "2 of 32" not in parsed.text
    assert "1 point did not fit into memory" in parsed.text


def test_missing_sections_name_their_requirements(page: str) -> None:
    start = page.index('<section id="missing">')
    section = page[start:].partition("</section>")[0] + "</section>"
    missing = Page(section).text

    assert "Scaling over devices" in missing
    assert "no measured run records this count" in missing
    assert "measure with a real input pipeline: python -m paradnn.train" in missing
    assert "bug in this tool" not in page


def test_the_address_of_a_tracking_server_has_no_credentials() -> None:
    assert ui_address("https://me:secret@host:5000/base/?token=x") == "https://host:5000/base"


@pytest.mark.parametrize("uri", ["sqlite:////home/me/mlflow.db", "javascript:alert(1)"])
def test_runs_link_only_to_a_tracking_server(uri: str) -> None:
    assert ui_address(uri) == ""


@pytest.fixture
def thirty_rows() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "family": HOSTILE,
            "speed": np.linspace(1e6, 2e6, 30),
            "name": [f"n{number}" for number in range(30)],
        }
    )


def test_a_table_reports_omitted_rows_and_common_values(thirty_rows: pd.DataFrame) -> None:
    export_command = "python -m analysis x --csv FILE"

    table = frame_table(thirty_rows, "Speeds", export_command=export_command, cap=20)

    assert (table.size, list(table.head), len(table.rows)) == (
        "20 of 30 rows",
        ["speed", "name"],
        20,
    )
    assert "The first 20 of 30 rows; all of them: python -m analysis x --csv FILE" in table.note
    assert f"The same in every row: family = {HOSTILE}." in table.note


def test_a_table_sorts_by_exact_values(thirty_rows: pd.DataFrame) -> None:
    table = frame_table(thirty_rows, "Speeds")

    assert table is not None
    assert table.rows[0][0] == ("1M", 1e6, False)


def test_no_rows_have_no_table(thirty_rows: pd.DataFrame) -> None:
    assert frame_table(thirty_rows.head(0), "None") is None


def test_hostile_text_of_a_store_becomes_no_markup_and_long_text_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hostile text becomes neither an element, nor an id, nor an address.

    Covers names of families, hosts, devices, runs and versions, and run ids.
    """
    monkeypatch.setattr("analysis.report.build.ui_address", lambda _: "http://h")
    words = [HOSTILE, '"><img src=x onerror=alert(1)>', "p1-sensitivity", "javascript:alert(1)"]
    words += ["x" * 100_000, "\u202ea\x1bb"]
    points = grid(nodes=(64, 256, 1024), layers=(4, 8), batches=(64, 256))
    names = ("family", "host", "run_name")
    hostile_columns = {
        name: [words[(row + shift) % 6] for row in range(12)] for shift, name in enumerate(names)
    }
    speed = {
        "examples_per_second": np.geomspace(1e3, 1e5, 12),
        "parameters": 1e4,
        "artifact_uri": "",
        "replicate": 0,
    }
    start = pd.Timestamp("2026-01-01", tz="UTC")
    frame = runs(
        points,
        start_time=start,
        device=HOSTILE,
        **hostile_columns,
        **speed,
        **{f"version.{words[4]}": HOSTILE},
    )
    frame["run_id"] = [f"{word}{row}" for row, word in enumerate(hostile_columns["run_name"])]
    text = make_report(frame, Selection(), made="now")

    parse_valid_page(text)

    assert not set("\u202e\x1b") & set(text)
    assert "xxxxx... (100,000 characters, " in text
    assert len(text) < 5e6


@pytest.fixture
def four_populations() -> pd.DataFrame:
    """Return runs of two environments, of a second protocol, and of a published device."""
    points = grid()
    return pd.concat(
        [
            runs(points, **{"version.tensorflow": "2.9", "environment_id": "a"}),
            runs(points.head(9), **{"version.tensorflow": "2.16", "environment_id": "b"}),
            runs(
                points.head(5),
                **{"version.tensorflow": "2.16", "environment_id": "b", "protocol_id": "slow"},
            ),
            runs(points.head(3), device="Other", environment_id="c", source="published"),
        ],
        ignore_index=True,
    )


def test_populations_have_selections_that_reproduce_them(four_populations: pd.DataFrame) -> None:
    populations = split(four_populations, Selection(family=("fc",)))

    assert [len(population.rows) for population in populations] == [64, 9, 5, 3]
    environment = ("environment_id", "b")
    assert [population.selection for population in populations] == [
        Selection(family=("fc",), device="Test CPU", tag=(("environment_id", "a"),)),
        Selection(family=("fc",), device="Test CPU", tag=(environment, ("protocol_id", "proto"))),
        Selection(family=("fc",), device="Test CPU", tag=(environment, ("protocol_id", "slow"))),
        Selection(family=("fc",), device="Other"),
    ]


def test_populations_have_unique_names(four_populations: pd.DataFrame) -> None:
    populations = split(four_populations, Selection(family=("fc",)))

    assert len({population.name for population in populations}) == 4
    assert populations[3].name == "Other"
    assert populations[3].is_published


def test_a_side_is_described_by_its_difference(four_populations: pd.DataFrame) -> None:
    first, second, third, _ = split(four_populations, Selection(family=("fc",)))

    assert describe_side(first, second, four_populations) == "version.tensorflow=2.9"
    assert describe_side(third, second, four_populations) == "protocol_id=slow"


def test_populations_of_one_device_can_be_pooled(four_populations: pd.DataFrame) -> None:
    pooled = split(four_populations, Selection(), pool=True)

    assert [len(population.rows) for population in pooled] == [78, 3]


def test_very_many_runs_are_sampled_by_point_with_all_replicates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = runs(grid(), examples_per_second=1.0)
    frame = pd.concat([points, points], ignore_index=True)
    monkeypatch.setattr("analysis.report.populations._MAX_ROWS", len(points))
    [section] = Context((), False).sections(
        [next(outline("system", frame))], frame, Selection(), "p", "all"
    )
    drawn_runs = int(section.reading.split()[1])

    assert 20 < drawn_runs < 108
    assert (
        section.reading == f"From {drawn_runs} of the 128 runs, whose points were drawn at random; "
        "the command uses all runs."
    )
    assert f"{drawn_runs // 2} points" in section.headline


def test_messages_are_separate_from_rates_of_examples() -> None:
    """Runs of messages have a separate section; rates of examples exclude them."""
    steps = runs(grid(nodes=(1, 2), layers=(1,), batches=(1, 2)))
    messages = runs(pd.DataFrame({"model.bytes": [1, 2, 4, 8]}), family="channel", transfer_us=1.0)
    rows = pd.concat([steps, messages], ignore_index=True)
    found = {section.title: section for _, section in outline("system", rows)}

    assert (
        found["Spread by family"].families
        == found["What performance depends on"].families
        == ("fc",)
    )
    assert "Heat map: fc" in found
    assert not any("channel" in title for title in found)
    assert found["Messages between processes"].families == ()


def test_the_first_screen_has_a_roofline_per_system_and_ratios_appear_once() -> None:
    points = grid(nodes=(64, 256), layers=(4, 8), batches=(16, 64, 256))
    frame = pd.concat(
        [
            runs(
                points,
                device=device,
                environment_id=device,
                examples_per_second=100 * points["batch_size"].astype(float) ** exponent,
                flops_per_second=exponent * 1e9,
                arithmetic_intensity=20.0,
                peak_flops_per_second=1e12,
                peak_bytes_per_second=1e11,
                artifact_uri="",
                start_time=pd.Timestamp("2026-01-01", tz="UTC"),
            )
            for device, exponent in (("A", 0.5), ("B", 0.7), ("C", 0.9))
        ],
        ignore_index=True,
    )
    text = make_report(frame, Selection())
    parse_valid_page(text)
    first_screen = text[: text.index('<nav aria-label="Contents">')]
    rooflines = first_screen[first_screen.index("Roofline of the models") :]

    assert rooflines.count("<img") == 3
    assert re.findall(r'<figure><a href="#p\d-roofline">(\w+)</a>', rooflines) == [
        "A",
        "B",
        "C",
    ]

    compared = text[text.index('<section id="compared">') :].partition('<section id="missing">')[0]
    by_size = compared[compared.index("What the speedup depends on") :]
    by_size = by_size[: by_size.index("</details>")]

    assert "geometric mean" not in by_size
    assert "the speedup depends on batch_size: " in by_size
