"""Steps over several devices as a channel predicts them: beside measured ones, and on more hosts than were measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from analysis.format import short
from analysis.result import Paragraph, Result, joined, pooled_within
from paradnn.core.words import MOST_HOSTS, counted, is_count
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.scaling_prediction import Expected
    from paradnn.forecast.communication.data_parallel import Exchange

__all__ = ["HostsResult", "PredictedResult", "describe_expected", "plan", "pooled_messages", "told_apart"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PredictedResult(Result):
    """Measured steps beside predicted ones, where no point was measured on one device and on more (weak scaling)."""

    expected: Expected

    @property
    def table(self) -> pd.DataFrame:
        """A row for each point and number of devices; times in ms."""
        return told_apart(self.expected.table)

    def _figure(self) -> Figure:
        from analysis.figures.scaling import draw_predicted

        return draw_predicted(self.expected)

    def _paragraphs(self) -> Iterator[Paragraph]:
        yield from describe_expected(self.expected)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HostsResult(Result):
    """What numbers of hosts would give."""

    expected: Expected
    scaling: Literal["weak", "strong"]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each point and number of hosts (`devices`); times in ms."""
        return told_apart(self.expected.table)

    def _figure(self) -> Figure:
        from analysis.figures.scaling_hosts import draw_hosts

        return draw_hosts(self.expected.table, f"{self.scaling} scaling over {self.expected.exchange.words}")

    def _paragraphs(self) -> Iterator[Paragraph]:
        exchange = self.expected.exchange
        for family, rows in self.expected.table.groupby("family"):
            points = counted(int(rows.groupby("devices").size().max()), "point")
            yield Paragraph(
                f"{family}: {self.scaling} scaling over {exchange.words}, on paper, of {points} measured on one.",
                tuple(
                    _on(count, rows[rows["devices"] == count], exchange.hides) for count in sorted(set(rows["devices"]))
                ),
            )
        yield from _reservations(self.expected)
        yield Paragraph(
            "Times of one device alone are measured, messages are the channel's; no link is shared, no host late. "
            "Shares are medians over points with those of their intervals, 95% of the channel's fit."
        )


def plan(
    frame: pd.DataFrame, exchange: Exchange, hosts: Sequence[str], scaling: Literal["weak", "strong"], pool: bool
) -> HostsResult:
    """What so many hosts of a measured channel would give; ConfigError for what is no count of them."""
    from analysis.methods.scaling_prediction import plan_hosts, trainings

    expected = plan_hosts(frame, exchange, [_count(text) for text in hosts], scaling)
    used = trainings(frame)
    sources = (*used["run_id"], *expected.run_ids)
    pooled = joined((pooled_within(used, ["family", "device"], pool), pooled_messages(frame, expected, pool)))
    return HostsResult(expected=expected, scaling=scaling, sources=sources, pooled=pooled)


def pooled_messages(frame: pd.DataFrame, expected: Expected, pool: bool) -> str:
    """What differs among the runs of the channel; SchemaError where anything does, unless `pool`."""
    return pooled_within(frame[frame["run_id"].isin(expected.run_ids)], ["device"], pool)


def told_apart(table: pd.DataFrame) -> pd.DataFrame:
    """Without what describes all rows alike, which only crowds them."""
    numbers = list(table.columns).index("batch_size")
    same = [name for name in table.columns[1:numbers] if table[name].nunique(dropna=False) == 1]
    return table.drop(columns=same)


def describe_expected(expected: Expected) -> Iterator[Paragraph]:
    """How near measured steps are to predicted ones, by family, number of devices and transport."""
    by_transport = "transport" in expected.table and expected.table["transport"].notna().all()
    groups = ["family", *["transport"] * bool(by_transport), "devices"]
    for names, rows in expected.table.groupby(groups):
        *who, count = names
        measured = rows["measured_ms"]
        off = {name: _share((rows[f"{name}_ms"] / measured - 1).abs().median()) for name in ("serial", "overlapped")}
        lost = {name: _share((1 - rows["alone_ms"] / rows[f"{name}_ms"]).median()) for name in (*off, "measured")}
        shift = (rows["serial_ms"] / measured - 1).median()
        signed = f"{abs(shift):.0%} too {'short' if shift < 0 else 'long'}"
        within = ((rows["overlapped_ms_low"] <= measured) & (measured <= rows["serial_ms_high"])).sum()
        hides = expected.exchange.hides
        without, with_ = (" without overlap", ", {} with") if hides else ("", "")
        yield Paragraph(
            f"{', '.join(map(str, who))} on {count}, predicted over {expected.exchange.words}: off by "
            f"{off['serial']} in the median{without} ({signed}){with_.format('by ' + off['overlapped'])}.",
            (
                f"Lost to more than one device: {lost['measured']} of the measured step, "
                f"{lost['serial']} of the predicted{without}{with_.format(lost['overlapped'])} (medians).",
                f"{within} of {counted(len(rows), 'point')} {'between the two' if hides else 'as predicted'}, "
                "with their intervals.",
            ),
        )
    yield from _reservations(expected)


def _on(count: int, rows: pd.DataFrame, hides: bool) -> str:
    ends = [rows[f"efficiency{ending}"].median() for ending in ("", "_low", "_high")]
    serial = [rows[f"efficiency_serial{ending}"].median() for ending in ("", "_low", "_high")]
    lost = (1 - rows["alone_ms"] / rows["overlapped_ms"]).median()
    with_, without = (" with overlap", f", {_shares(serial)} without") if hides else ("", "")
    return (
        f"on {count}: {_shares(ends)} of the speed of {count} without loss{with_}{without}; "
        f"{_share(lost)} of the step waits for gradients{with_}."
    )


def _reservations(expected: Expected) -> Iterator[Paragraph]:
    """How the link holds on other numbers of processes, and what the prediction was not measured for."""
    for check in expected.checks:
        small, large = (f"{ratio:.2f} times as long at {short(size, 'B')}" for size, ratio in check.ratios)
        yield Paragraph(
            f"On {check.processes} processes {check.channel} takes {small} and {large} as predicted from this channel."
        )
    beyond = int(expected.table["alone_from"].eq("extrapolated").sum())
    if beyond:
        yield Paragraph(
            f"Of {len(expected.table)} predictions {beyond} are for batches of a device that are beyond those measured "
            "on one; measure such batches with devices=1 to be surer."
        )
    if expected.largest > expected.link.largest:
        yield Paragraph(
            f"Messages of up to {short(expected.largest, 'B')} are asked for, the channel was measured to "
            f"{short(expected.link.largest, 'B')}: its last line is drawn on."
        )
    if expected.too_many:
        yield Paragraph(f"Left out: {counted(expected.too_many, 'step')} with fewer examples than devices.")


def _count(text: str) -> int:
    if not is_count(text, MOST_HOSTS):
        reason = f"is no number of hosts from 1 to {MOST_HOSTS:,}"
        raise ConfigError("--hosts", text, reason, "write whole numbers, as in --hosts 1,2,4,1024")
    return int(text)


def _share(value: float) -> str:
    return short(float(value), share=True)


def _shares(ends: list[float]) -> str:
    value, low, high = (_share(each) for each in ends)
    return f"{value} ({low} to {high})"
