"""Helpers that run an analysis from a command line and assert that it rejects its input."""

import shlex

import pandas as pd
import pytest

from analysis.cli import make_parser
from analysis.options import read_arguments
from analysis.result import Result
from paradnn.core.errors import ParadnnError


def answer(command_line: str, frame: pd.DataFrame) -> Result:
    """Run the analysis of a command line on a frame of runs and return its result."""
    parsed = make_parser().parse_args(shlex.split(command_line))
    assert parsed.sub_command.analysis
    return parsed.sub_command.analysis(frame, read_arguments(parsed.sub_command.options, parsed))


def assert_rejected(command_line: str, frame: pd.DataFrame, message: str) -> None:
    """Assert that a command line raises a one-line error that contains the message."""
    with pytest.raises(ParadnnError) as caught:
        answer(command_line, frame)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
