"""Check questions that an analysis cannot answer."""

import shlex

import pandas as pd
import pytest

from analysis.cli import make_parser
from analysis.options import read_arguments
from analysis.result import Result
from paradnn.core.errors import ParadnnError


def answer(words: str, frame: pd.DataFrame) -> Result:
    """Return an analysis's answer about the runs for a command line."""
    given = make_parser().parse_args(shlex.split(words))
    assert given.sub_command.analysis
    return given.sub_command.analysis(frame, read_arguments(given.sub_command.options, given))


def assert_rejected(words: str, frame: pd.DataFrame, message: str) -> None:
    """Assert that a command line ends in one line that holds the message."""
    with pytest.raises(ParadnnError) as caught:
        answer(words, frame)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
