"""The documentation site covers all pages and public names; its commands and links are valid."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

import analysis
from analysis.claims.load import parse_claims
from analysis.cli import COMMANDS, make_parser
from paradnn.cli.help import known_keys
from paradnn.config.groups import option_names
from paradnn.config.paths import CONFIG
from paradnn.core.metric import SECTIONS, interval_names
from paradnn.store.metrics import FAMILIES, METRICS
from tests.conftest import ROOT


def navigation_pages(entry: Any) -> Iterator[str]:
    """Yield the files that an entry of the navigation names.

    Args:
        entry: A file name, a list of entries, or a dictionary from titles to entries.
    """
    if isinstance(entry, str):
        yield entry
        return
    children = entry
    if isinstance(entry, dict):
        children = entry.values()
    for child in children:
        yield from navigation_pages(child)


def test_the_navigation_has_exactly_the_existing_pages() -> None:
    named = list(navigation_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    other_pages = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"}
    assert sorted(named) == sorted(
        {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")} | other_pages
    )


def test_the_reference_contains_every_public_name() -> None:
    """Analyses are excluded, since the site build writes their entries."""
    reference = (ROOT / "docs/reference/api.md").read_text()
    public_objects = (getattr(analysis, name) for name in analysis.__all__)
    named = {
        f"{each.__module__}.{each.__name__}"
        for each in public_objects
        if ".analyses." not in each.__module__
    }
    assert named <= set(re.findall(r"^::: (.*)", reference, re.MULTILINE))


def section_table() -> str:
    """Return the table of the sections of metrics in docs/reference/metrics.md."""
    contents = {"": "headline metrics", **SECTIONS}
    metrics_by_section: dict[str, list[str]] = {section: [] for section in contents}
    interval_metrics = {end for name in METRICS for end in interval_names(name)}
    for name, metric in (METRICS | FAMILIES).items():
        if name in interval_metrics:
            continue
        label = f"`{metric.name}`"
        if name.startswith("phase_"):
            label = "`phase_<name>_seconds`"
        # All metrics of phases have the same label.
        if label not in metrics_by_section[metric.section]:
            metrics_by_section[metric.section].append(label)
    lines = ["| section | contents | metrics |", "| --- | --- | --- |"]
    for section, labels in metrics_by_section.items():
        prefix = "(none)"
        if section:
            prefix = f"`{section}/`"
        lines.append(f"| {prefix} | {contents[section]} | {', '.join(labels)} |")
    return "\n".join(lines)


def test_the_reference_lists_the_sections_of_metrics() -> None:
    assert section_table() in (ROOT / "docs/reference/metrics.md").read_text(), section_table()


def test_files_that_the_site_copies_exist() -> None:
    (copied,) = re.findall(
        r"cp -r --parents (.*?)build/docs\n", (ROOT / "Makefile").read_text(), re.DOTALL
    )
    missing = [name for name in copied.replace("\\", " ").split() if not (ROOT / name).exists()]
    assert missing in ([], ["report.html"])  # `make demo` writes this file


def test_every_link_between_pages_leads_to_a_file() -> None:
    page_paths = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
    ]
    built = {"docs/validation/report.md": "../../report.html"}  # written by `make demo`
    for page in page_paths:
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
            name = str(page.relative_to(ROOT))
            assert (page.parent / target).exists() or built.get(name) == target, f"{name}: {target}"


ANALYSIS_PAGES = {
    name: (ROOT / "docs" / name).read_text()
    for name in ("reference/analysis.md", "how-to/claims.md", "how-to/compare.md")
}
ALL_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def analysis_commands(*page_texts: str) -> list[str]:
    """Return the analysis commands in the shell blocks of pages."""
    blocks = (
        block for text in page_texts for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    )
    return [
        line
        for block in blocks
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("python -m analysis")
    ]


ANALYSIS_COMMANDS = analysis_commands(*ANALYSIS_PAGES.values())


@pytest.mark.parametrize(
    "line", sorted(set(analysis_commands(*(page.read_text() for page in ALL_PAGES))))
)
def test_documented_analysis_commands_are_accepted(line: str) -> None:
    assert make_parser().parse_args(shlex.split(line, comments=True)[3:]).sub_command


def test_every_command_is_documented() -> None:
    assert {command.name for command in COMMANDS} == {
        shlex.split(line)[3] for line in ANALYSIS_COMMANDS
    }


def test_the_example_of_a_claims_file_is_valid() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", ANALYSIS_PAGES["how-to/claims.md"], re.DOTALL)
    (claim,) = parse_claims(text, "docs/how-to/claims.md")
    assert [check.kind for check in claim.checks] == ["trend", "ratio"]


PAGES_AND_CONFIGURATION = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(CONFIG.rglob("*.yaml")),
]
COMMAND = re.compile(r"python -m paradnn\.(?:train|plan|ceilings|compare) ([^`\n]*\w[^`\n]*)")
DOCUMENTED_OVERRIDES = sorted(
    {
        line
        for page in PAGES_AND_CONFIGURATION
        for line in COMMAND.findall(page.read_text().replace("\\\n", " "))
        if "..." not in line
    }
    - {"software=my-stack"}  # example of a file that the reader writes
)


#: Prefixes of keys that the user chooses, or that do not belong to a point.
FREE_KEYS = ("hydra.", "hydra/launcher", "plan.", "framework.env.", "tracking.tags.")


@pytest.mark.parametrize("line", DOCUMENTED_OVERRIDES)
def test_documented_overrides_exist(line: str) -> None:
    # One side of a comparison may consist of several overrides in a quoted word.
    words = [
        part
        for word in shlex.split(line, comments=True)
        for part in re.split(r" (?=[\w.]+=)", word)
    ]
    overrides = [word for word in words if not word.startswith("-")]
    for override in OverridesParser.create().parse_overrides(
        [word for word in overrides if "=" in word]
    ):
        group = override.key_or_group
        value = str(override.input_line).partition("=")[2]
        options = option_names(group)
        if options:
            assert set(value.split(",")) <= set(options), line
        elif not override.key_or_group.startswith(FREE_KEYS):
            assert override.key_or_group in known_keys(), line
