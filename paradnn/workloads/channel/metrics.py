"""The metrics of messages between processes."""

from paradnn.core.metric import Metric, in_section

METRICS = (
    Metric(
        "transfer_us",
        "us",
        "lower",
        "time of one message one way, or of a collective",
        has_interval=True,
    ),
    Metric(
        "round_trip_us",
        "us",
        "lower",
        "time of a message and its echo (pattern=latency), or of a step of all workers "
        "(pattern=parameter_server)",
        has_interval=True,
    ),
    Metric(
        "sent_bytes_per_second",
        "B/s",
        "higher",
        "bytes of the messages, or of a collective / time",
        has_interval=True,
    ),
    *in_section(
        "messages",
        Metric(
            "bus_bytes_per_second",
            "B/s",
            "higher",
            "bytes of a collective that each process's link carries / time",
            has_interval=True,
        ),
        Metric(
            "messages_per_second",
            "1/s",
            "higher",
            "messages of all senders, or collectives",
            has_interval=True,
        ),
    ),
)
