"""Report how well lines over the message size explain published times of collectives.

    python -m benchmarks.published_channels

Uses all-reduce and send/receive on A40, A100 and H100 (github.com/microsoft/vidur, MIT License),
part of the package. For each machine and number of devices the fit uses every second size and is
tested on the others; errors are |measured / predicted - 1|.
"""

import numpy as np
import pandas as pd

from analysis.published.source import load_shipped
from benchmarks.common import save
from paradnn.statistics.transfers import fit_transfers, predicted_times

#: Minimum size of a large message in bytes.
_LARGE = 65536
_KEYS = ["device", "model.pattern", "model.processes", "model.hosts"]


def tried(rows: pd.DataFrame) -> dict[str, object]:
    """Return errors of a fit to every second size on the others, and of one line; breaks in KiB."""
    known = rows[::2]
    others = rows[1::2]
    fit = fit_transfers(known["size"], known["us"])
    sizes = others["size"]
    measured = others["us"].to_numpy()
    is_large = (sizes >= _LARGE).to_numpy()
    errors, line = (
        np.abs(measured / expected - 1)
        for expected in (predicted_times(fit.pieces, sizes), fit.line.at(sizes))
    )
    below: object = ""
    if not is_large.all():
        below = round(float(np.median(errors[~is_large])), 4)
    return {
        "sizes": len(rows),
        "start_up_us": round(fit.latency.value, 1),
        "GB_per_second": round(fit.bandwidth.value / 1e9, 1),
        "breaks_KiB": " ".join(f"{size / 1024:.0f}" for size in fit.breaks),
        "median_error": round(float(np.median(errors[is_large])), 4),
        "p90_error": round(float(np.quantile(errors[is_large], 0.9)), 4),
        "below_median_error": below,
        "one_line_median_error": round(float(np.median(line[is_large])), 4),
    }


def main() -> None:
    table = pd.DataFrame(
        {
            **run.tags,
            **run.params,
            "size": int(run.params["model.bytes"]),
            "us": run.metrics["transfer_us"],
        }
        for run in load_shipped("vidur").runs
    )
    rows: list[dict[str, object]] = []
    for values, part in table.groupby(_KEYS):
        rows.append(
            dict(zip(_KEYS, values, strict=True))
            | tried(part.groupby("size")[["us"]].mean().reset_index())
        )
        print(rows[-1], flush=True)
    errors = [float(str(row["median_error"])) for row in rows]
    print(
        f"median errors from {_LARGE} bytes on: {np.median(errors):.1%} in the median, "
        f"{max(errors):.1%} at most"
    )
    save("published_channels", rows)


if __name__ == "__main__":
    main()
