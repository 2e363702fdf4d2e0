"""Measure the points (configurations) of this folder on this machine: `python run.py`.

The command needs Python and the packages of the engines. It skips points that have a result, so it
continues after an interruption. On the machine that created the folder (`elsewhere=FOLDER`,
docs/how-to/engines.md), `python -m paradnn.sync FOLDER` logs the results.
"""

import json
import time
from dataclasses import replace
from pathlib import Path

from paradnn.config.identity import Identity, point_id
from paradnn.config.point import Software, step_costs
from paradnn.config.reading import read_point
from paradnn.core.versions import versions
from paradnn.platform.environment import describe_environment
from paradnn.session.open_point import OpenPoint
from paradnn.session.record import point_tags
from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from paradnn.store.journal import Document, Journal
from paradnn.store.runs import Claim

FOLDER = Path(__file__).absolute().parent


def main() -> None:
    """Measure the points that have no result yet."""
    with WorkerPool(limit=1) as pool:
        for path in sorted(FOLDER.glob("asked-*.json")):
            name = path.stem.replace("asked", "point")
            if (FOLDER / f"{name}.json").exists():
                continue
            point = read_point(json.loads(path.read_text()))
            environment = describe_environment("cpu", versions(point.framework.name))
            identity = Identity(point_id(point), environment.environment_id, point.replicate)
            claim = Claim("", identity, int(time.time() * 1000))
            tags = point_tags(point, environment)
            entry = OpenPoint(point, environment, None, claim, tags, step_costs(point))
            # Use this interpreter, even if another one converted the model.
            key = WorkerKey.of(replace(point, software=Software()))
            while not entry.is_complete:
                begun = time.time()
                request = {**entry.request(), "artefact": str(path.with_suffix(".npz"))}
                result = pool.measure(
                    key, request, Limits(point.measure.timeout, None), lambda _: None
                )
                entry.results.append(replace(result, begun=begun))
            record = entry.record()
            Journal(FOLDER).keep(Document(record, name, None, None, False, None))
            print(f"{record.name}: {record.reason or record.outcome}", flush=True)


if __name__ == "__main__":
    main()
