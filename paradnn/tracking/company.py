"""Whether other drivers record into the same experiment of a server: asked every few seconds, not for every point.

A claim holds only when no other stood beside it once it was written, and to look for one is a request. A driver that is
alone saves it. For that every driver enters itself among the tags of the experiment before its first claim, then looks
who else is there. What it sees is believed for `TRUST` seconds, so one that finds others waits so long before it claims
anything: by then each that believed itself alone has looked again, or its claims are there to be seen. From then on
both look for other claims beside each of their own.

An entry stays when its driver ends, since some may not have looked meanwhile. A later driver removes it when its own is
there, which tells them the same. What a driver recorded that had ended before the store was read is known from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from paradnn.store.files import read_json
from paradnn.store.schema import EXPIRES, OWNER
from paradnn.tracking.run_index import Entry

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["CLAIM_MARGIN", "TRUST", "Company"]

#: For how long a look holds, in seconds; who comes later waits so long, once.
TRUST = 2.0
#: How much longer than its time limit a claim of another host is believed, in seconds.
CLAIM_MARGIN = 600.0
#: How much longer still an entry is, so that it is not written with each claim.
_AHEAD = 3600.0
#: How the tags of an experiment begin that name its drivers; the UI hides them.
_DRIVER = "mlflow.paradnn.driver."


class Company:
    """The other drivers of an experiment, as far as a driver must know of them.

    `owner` is the tag of the driver's own claims. Without `asks` (a database, where a look costs little) it is never
    said to be alone.
    """

    def __init__(self, client: Callable[[], MlflowClient], experiment_id: str, owner: str, asks: bool) -> None:
        self._client, self._experiment_id, self._owner, self._asks = client, experiment_id, owner, asks
        self._key = _DRIVER + hashlib.sha256(owner.encode()).hexdigest()[:16]
        self._ended: Collection[str] = ()  # entries of drivers that had ended before the store was read
        self._began = False
        self._expires = 0.0  # until when our entry is believed
        self._alone_until = 0.0
        self._met = False

    def before_reading(self) -> None:
        """To be called before the store is first read: what ended drivers recorded will be seen there."""
        if self._asks and not self._began:
            self._ended = {entry.run_id for entry in self._others() if entry.is_abandoned()}
            self._began = True

    def enter(self, timeout: float) -> None:
        """To be called before a run is made, or another's claim renewed, that takes so many seconds at most.

        The first call waits where others may be there; so does one so late that they may have removed the entry.
        """
        now = time.time()
        expires = now + timeout + CLAIM_MARGIN
        if not self._asks or expires <= self._expires:
            return
        self.before_reading()
        enters, until = now > self._expires, expires + _AHEAD
        value = json.dumps({OWNER: self._owner, EXPIRES: f"{until:.0f}"})
        self._client().set_experiment_tag(self._experiment_id, self._key, value)
        if enters:
            self._remove_ended()
            if not self._looks_alone():
                time.sleep(TRUST)
        self._expires = until

    def is_alone(self) -> bool:
        """Whether no other driver can have claimed what was just claimed, if it was free when the store was read.

        Asked after the claim was written: one that was held up on its way would be later than others believe.
        """
        if not self._asks or self._met:
            return False
        return _now() < self._alone_until or self._looks_alone()

    def _looks_alone(self) -> bool:
        asked = _now()
        self._met |= any(entry.run_id not in self._ended for entry in self._others())
        self._alone_until = asked + TRUST
        return not self._met

    def _others(self) -> Iterator[Entry]:
        """The entries of other drivers, as claims: the key is in the place of a run's id."""
        tags = self._client().get_experiment(self._experiment_id).tags
        for key, value in tags.items():
            if key.startswith(_DRIVER) and key != self._key:
                with contextlib.suppress(ValueError, TypeError):  # what is none of ours is no driver
                    entry = Entry(key, "RUNNING", {OWNER: "", EXPIRES: ""} | read_json(value))
                    if entry.is_readable:
                        yield entry

    def _remove_ended(self) -> None:
        from mlflow.exceptions import MlflowException

        for key in self._ended:
            with contextlib.suppress(MlflowException):  # another driver may remove it in the same moment
                self._client().delete_experiment_tag(self._experiment_id, key)


def _now() -> float:
    """Seconds of a clock that goes on while the host sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
