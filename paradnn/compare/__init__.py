"""Which of two is faster: settings, commands, commits or functions by turns, until the interval is
enough.

from paradnn import compare answer = compare(old, new, minutes=2)          # functions without
arguments, of the top level of a file answer = compare("python old.py", "python new.py") assert
answer.verdict != "slower", answer
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paradnn.compare.commands import Turns


class _Callable(ModuleType):
    """A module that compares when it is called."""

    def __call__(
        self,
        first: Callable[[], Any] | str,
        second: Callable[[], Any] | str,
        *,
        minutes: float = 2.0,
        within: float = 0.02,
        equivalence: float = 0.02,
        timeout: float = 600.0,
    ) -> Turns:
        """Run both by turns in fresh processes until half the 95% interval is below `within`, or
        for so many minutes.

        Functions are called by finer turns (`paradnn.compare.duet`), commands one after the other.
        Differences below `equivalence` do not matter. ConfigError for what cannot be started. See
        `paradnn.compare.text.Paired` for what is known in the end.
        """
        from paradnn.compare.commands import CommandProtocol
        from paradnn.compare.duet import command_of, turns_of
        from paradnn.statistics.paired_rounds import COMMAND_ROUNDS, Rule

        rule = Rule(within, equivalence, most=COMMAND_ROUNDS)
        terms = CommandProtocol(minutes, timeout=timeout)
        turns = turns_of((command_of(first), command_of(second)), rule, terms)
        if turns.follow():
            raise KeyboardInterrupt
        return turns


sys.modules[__name__].__class__ = _Callable
