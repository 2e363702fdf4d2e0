"""What a recorded number means: declared where it is computed, collected by `paradnn.store.metrics`."""

from dataclasses import dataclass

from paradnn.core.tables import rows


@dataclass(frozen=True)
class Metric:
    """One measured or derived quantity. `better` is "higher", "lower" or None where neither is better in itself; `kind`
    says which records hold it."""

    name: str
    unit: str
    better: str | None
    kind: str
    description: str


def interval_names(name: str) -> tuple[str, str]:
    """The metrics that hold the lower and the upper end of a metric's 95% interval: the unit of a time stands last."""
    unit = next((unit for unit in ("_us", "_ms", "_seconds", "_joules") if name.endswith(unit)), "")
    stem = name.removesuffix(unit)
    return f"{stem}_low{unit}", f"{stem}_high{unit}"


def declared(file: str) -> tuple[Metric, ...]:
    """Those of the table `metrics.csv` beside a module; a row with `ends` has the metrics of its 95% interval behind
    it."""
    found: list[Metric] = []
    for name, unit, better, kind, ends, description in map(dict.values, rows(file, "metrics.csv")):
        found.append(Metric(name, unit, better or None, kind, description))
        for end, word in zip(interval_names(name), ("lower", "upper"), strict=True) if ends else ():
            found.append(Metric(end, unit, better or None, kind, f"{word} end of its 95% interval"))
    return tuple(found)
