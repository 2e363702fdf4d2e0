"""Clusters on this machine for the benchmarks of launchers: those of tests/cluster, each with what a sweep needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["LAUNCHERS", "Cluster", "cluster"]

#: Launchers that have nodes.
LAUNCHERS = ("slurm", "ray")


@dataclass(frozen=True)
class Cluster:
    """`arguments` and `environ` of a sweep over it; `lose_node` kills one of two nodes with all that runs on it."""

    arguments: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    lose_node: Callable[[], None] = lambda: None


@contextmanager
def cluster(launcher: str, folder: Path, nodes: int = 2) -> Iterator[Cluster]:
    """The nodes of a launcher, as long as they are needed; its files lie below `folder`, where it keeps any.

    One node of Ray runs one task at a time, as each of two does. Slurm has two, and takes a whole one.
    """
    arguments = [f"hydra/launcher={'ray_cluster' if launcher == 'ray' else launcher}"]
    if launcher == "slurm":
        from tests.cluster.slurm import NODES, Slurm

        (folder / "slurm").mkdir()
        slurm = Slurm(folder / "slurm")
        arguments.append(f"hydra.launcher.submitit_folder={folder}/jobs/%j")
        if nodes == 1:
            arguments.append("hydra.launcher.array_parallelism=1")
        stop, made = slurm.stop, Cluster(arguments, slurm.environ, lambda: slurm.power_off(NODES[1]))
    else:
        from tests.cluster.ray_cluster import RayCluster

        ray = RayCluster(nodes=nodes)
        stop, made = ray.stop, Cluster(arguments, ray.environ, lambda: ray.power_off(ray.second))
    try:
        yield made
    finally:
        stop()
