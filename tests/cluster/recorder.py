"""A driver that claims and records points without measuring them.

    python -m tests.cluster.recorder URI EXPERIMENT POINTS

Recorders that start on the same points at the same time collide far more often than sweeps. A
recorder prints "ready", starts when it reads a line, and prints the number of points that it
recorded.
"""

import random
import sys
import time
from collections import deque

from paradnn.config.identity import Identity
from paradnn.config.settings import Tracking
from paradnn.store.journal import Journal
from paradnn.store.mlflow_store import MlflowStore
from paradnn.store.runs import SCHEMA_VERSION, Claim, Record
from paradnn.store.tracker import open_tracker

ENVIRONMENT = "e" * 16


def tags_of(identity: Identity) -> dict[str, str]:
    return {
        "kind": "point",
        "schema_version": SCHEMA_VERSION,
        "point_id": identity.point_id,
        "environment_id": identity.environment_id,
        "replicate": str(identity.replicate),
    }


def record_of(claim: Claim) -> Record:
    number = int(claim.identity.point_id)
    return Record(
        name=f"point {number}",
        outcome="ok",
        reason=None,
        params={"model.nodes": str(number)},
        metrics={f"metric_{index}": float(number) for index in range(40)},
        tags={**tags_of(claim.identity), "outcome": "ok"},
        artifacts={"blocks.json": [number] * 200},
        start_time=claim.start_time,
        end_time=int(time.time() * 1000),
    )


def claimed(tracker: Journal | MlflowStore, number: int) -> Claim:
    """Claim a point that no other driver has claimed or measured."""
    identity = Identity(str(number), ENVIRONMENT, 0)
    claim = tracker.begin(identity, f"point {number}", tags_of(identity), lambda tags: True)
    assert isinstance(claim, Claim)
    return claim


def main() -> None:
    uri, experiment, points = sys.argv[1:]
    tracker = open_tracker(
        Tracking(uri=uri, experiment=experiment), lambda line: print(line, file=sys.stderr)
    )
    tracker.finished([ENVIRONMENT])  # as a session does before its first claim
    queue = deque(Identity(str(number), ENVIRONMENT, 0) for number in range(int(points)))
    print("ready", flush=True)
    sys.stdin.readline()
    recorded = 0
    while queue:
        identity = queue.popleft()
        claim = tracker.begin(
            identity, f"point {identity.point_id}", tags_of(identity), lambda tags: True
        )
        if claim is None:
            queue.append(identity)
            time.sleep(random.uniform(0.0, 0.02))
        elif isinstance(claim, Claim):
            tracker.record(claim, record_of(claim), dict)
            recorded += 1
    print(recorded)


if __name__ == "__main__":
    main()
