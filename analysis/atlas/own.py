"""Kernels of one's own store as an atlas: of a device that nobody published.

An operation within a step is not called: of each kernel's time the call is taken off. What a kind's
kernels take to begin beyond the call of an elementwise operation is the library's own preparation,
and happens in a step as well; what an operation takes within a call is what chains of elementwise
kernels show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from analysis.atlas import Atlas, Group, load
from analysis.atlas.expect import model_in
from analysis.lazy import pd
from analysis.store.frame import IDENTITY
from analysis.store.lazy_past import past
from paradnn.core.errors import NotEnoughData, StoreError
from paradnn.families import FAMILIES

#: What kernels have in common with the point that is asked for, where both say it.
_SAME = ("precision", "framework.name", "compile")


def kernels_in(store: str | None) -> pd.DataFrame:
    """The kernels that a store holds; none where none is named and there is no usual one."""
    from analysis.store.load import load

    names = [
        name
        for name, family in FAMILIES.items()
        if family.is_kernel and not family.is_communication
    ]
    try:
        runs = load(store, family=names, outcome="ok")
    except StoreError:
        if store is not None:
            raise
        runs = pd.DataFrame()
    if "step_time_ms" in runs:
        return runs[runs["step_time_ms"].gt(0)]
    return pd.DataFrame({"device": []})


def own_atlas(
    runs: pd.DataFrame, device: str, row: Mapping[Any, Any], similar: str | None = None
) -> Atlas:
    """An atlas of the kernels that ran on `device` like the point of `row`: of several environments
    or protocols those of the last. What a `similar` device of the shipped atlas does is where their
    fits begin. NotEnoughData where there are too few; ConfigError for a similar device that is not
    there.
    """
    from paradnn.forecast.operation_times import LEAST, OperationTimes

    runs = runs[runs["device"].eq(device)]
    wanted = {name: row[name] for name in _SAME if name in runs and pd.notna(row.get(name))}
    for name, value in wanted.items():
        runs = runs[runs[name].eq(value) | runs[name].isna()]
    if runs.empty:
        words = " ".join(f"{name}={value}" for name, value in wanted.items())
        raise NotEnoughData(
            f"no kernel ran there with {words}; measure some: paradnn train -m experiment=kernels"
        )
    for name in IDENTITY:
        if name in runs:
            last = runs[name].iloc[-1]
            runs = runs[runs[name].isna() if pd.isna(last) else runs[name].eq(last)]
    rows = runs.to_dict("records")
    operations = [
        model_in(one).as_operation(int(one["batch_size"]), str(one["precision"])) for one in rows
    ]
    timings = pd.DataFrame(map(vars, operations)).assign(
        seconds=runs["step_time_ms"].to_numpy(dtype="float64") / 1e3
    )
    groups = {}
    counts = {}
    noise = past.noise_of(runs)
    published, name = (load(), load().device(similar, "--from")) if similar else (None, "")
    for kind, places in timings.groupby("kind").indices.items():
        mine = [operations[place] for place in places]
        own = timings.iloc[places]
        counts[kind] = len(set(mine))
        if counts[kind] >= LEAST:
            if published:
                like = published.find(name, str(kind), str(row["precision"]))
            else:
                like = None
            fit = OperationTimes.fit(mine, own["seconds"].to_numpy(), noise[places])
            if like:
                fit = fit.or_like(like.times(), mine, own["seconds"].to_numpy(), noise[places])
            source = f"the store, beside {like.told}" if like else "the store"
            groups[kind] = Group(
                source=source, commit="", device=device, engine=str(row.get("framework.name", "")), version="",
                precision=str(row["precision"]), kind=str(kind), rows=len(own), kept=len(own), held_out=len(own),
                median_error=fit.left_out.median_error, coverage=fit.left_out.coverage(), call=True, timings=own,
                fit=fit,
            )  # fmt: skip
    if not groups:
        few = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        raise NotEnoughData(
            f"too few kernels ran there ({few}); {LEAST} of a kind are the least, {2 * LEAST} better"
        )
    if "elementwise" in groups:
        chains = groups["elementwise"].times()
    else:
        chains = None
    if chains:
        call = chains.dispatch
    else:
        call = min(group.times().dispatch for group in groups.values())
    step = chains.step if chains else 0.0
    groups = {
        kind: replace(group, start=call, before=max(group.times().dispatch - call, 0.0) + step)
        for kind, group in groups.items()
    }
    if (
        "gemm" in groups
    ):  # products beside each other, as attention has them, are prepared as convolutions are
        before = groups.get("conv2d", groups["gemm"]).before
        groups["bmm"] = replace(groups["gemm"], kind="bmm", before=before)
    return Atlas(tuple(groups.values()))
