"""The documentation as a site: every page has its place, and every command of `analysis` its entry in the reference."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import analysis

ROOT = Path(__file__).parents[1]


def pages(entry: Any) -> Iterator[str]:
    """The files that an entry of the navigation names."""
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from pages(each)


def test_the_navigation_has_every_page_and_no_other() -> None:
    named = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    beside = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"}
    assert sorted(named) == sorted({f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} | beside)


def test_the_reference_has_all_that_the_package_offers() -> None:
    reference = (ROOT / "docs/api.md").read_text()
    plain = {"Options", "BreakdownOptions"}  # no field of their own
    for name in sorted(set(analysis.__all__) - plain):
        assert f"::: {getattr(analysis, name).__module__}.{name}\n" in reference


def test_every_link_between_pages_leads_to_a_file() -> None:
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
    ]
    built = {"docs/report.md": "../report.html"}  # written by `make demo`
    for page in pages:
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
            name = str(page.relative_to(ROOT))
            assert (page.parent / target).exists() or built.get(name) == target, f"{name}: {target}"
