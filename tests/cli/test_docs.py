"""Every `python -m paradnn.train`, `.plan`, `.compare` in the documentation: groups, options and keys that exist."""

import re
import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from paradnn.cli.help import known_keys
from paradnn.config.groups import options_of
from paradnn.config.paths import CONFIG
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(CONFIG.rglob("*.yaml"))]
COMMAND = re.compile(r"python -m paradnn\.(?:train|plan|ceilings|compare) ([^`\n]*\w[^`\n]*)")
TYPED = sorted(
    {line for page in PAGES for line in COMMAND.findall(page.read_text().replace("\\\n", " ")) if "..." not in line}
    - {"software=my-stack"}  # the example of a file that the reader writes
)


@pytest.mark.parametrize("line", TYPED)
def test_documented_overrides_exist(line: str) -> None:
    # A side of a comparison may be several overrides in one quoted word.
    words = [part for word in shlex.split(line, comments=True) for part in re.split(r" (?=[\w.]+=)", word)]
    overrides = [word for word in words if not word.startswith("-")]
    for override in OverridesParser.create().parse_overrides([word for word in overrides if "=" in word]):
        group, value = override.key_or_group, str(override.input_line).partition("=")[2]
        if options := options_of(group):
            assert set(value.split(",")) <= set(options), line
        elif not override.key_or_group.startswith(("hydra.", "plan.", "framework.env.")):
            assert override.key_or_group in known_keys(), line
