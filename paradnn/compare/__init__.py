"""Compare the speed of two settings, commands, commits or functions in interleaved runs.

The module is callable:

    from paradnn import compare

    answer = compare(old, new, minutes=2)  # functions without arguments, at the top level of a file
    answer = compare("python old.py", "python new.py")
    assert answer.verdict != "slower", answer
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paradnn.compare.commands import CommandComparison


class _CallableModule(ModuleType):
    """A module that can be called to compare two functions or commands."""

    def __call__(
        self,
        first: Callable[[], Any] | str,
        second: Callable[[], Any] | str,
        *,
        minutes: float = 2.0,
        within: float = 0.02,
        equivalence: float = 0.02,
        timeout: float = 600.0,
    ) -> CommandComparison:
        """Compare the speed of two functions or two command lines, in fresh processes.

        Args:
            first: A function without arguments at the top level of a file, or a command line.
            second: The function or command line to compare with; of the same kind as `first`.
            minutes: Time limit. A round, which runs both once, does not start if it would end after
                this limit.
            within: The comparison stops when the half width of the 95% confidence interval of the
                ratio is at most this share of the ratio (0.02: 2%).
            equivalence: Largest difference in speed that does not matter, as a share (0.02: 2%).
            timeout: Seconds after which a run counts as failed.

        Returns:
            The comparison. Its `verdict` on `first` is "faster", "slower", "equal" or "undecided".
            `ratio` is the speed of `first` divided by the speed of `second`. `low` and `high` are
            the ends of its 95% confidence interval. `rounds` is the number of rounds, and `seconds`
            the duration.

        Raises:
            ConfigError: If a command cannot be started, or a function cannot be imported.
            KeyboardInterrupt: If the user interrupted the comparison.
        """
        from paradnn.compare.functions import command_of, comparison_of
        from paradnn.compare.processes import CommandProtocol
        from paradnn.statistics.paired_rounds import COMMAND_ROUNDS, Rule

        rule = Rule(within, equivalence, most=COMMAND_ROUNDS)
        protocol = CommandProtocol(minutes, timeout=timeout)
        comparison = comparison_of((command_of(first), command_of(second)), rule, protocol)
        if comparison.follow():
            raise KeyboardInterrupt
        return comparison


sys.modules[__name__].__class__ = _CallableModule
