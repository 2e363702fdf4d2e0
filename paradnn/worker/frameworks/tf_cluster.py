"""TensorFlow's distribution strategy for several processes."""

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from paradnn.worker.process_group import host_and_port


def connect(rank: int, addresses: Sequence[str], implementation: str = "AUTO") -> Any:
    """Wait until all processes have joined, and return a MultiWorkerMirroredStrategy.

    Args:
        rank: Number of this process, from 0.
        addresses: Address (host:port) of every process, in order of rank.
        implementation: Name of the `tf.distribute.experimental.CommunicationImplementation`: AUTO,
            RING or NCCL.
    """
    # Connect to these hosts directly, even if the environment sets a proxy.
    hosts = dict.fromkeys(host_and_port(address)[0] for address in addresses)
    os.environ["no_grpc_proxy"] = ",".join(hosts)  # noqa: SIM112 - gRPC reads it in lower case
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(addresses)}),
        task_type="worker",
        task_id=rank,
        rpc_layer="grpc",
    )
    communication = tf.distribute.experimental.CommunicationImplementation[implementation]
    options = tf.distribute.experimental.CommunicationOptions(implementation=communication)
    return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
