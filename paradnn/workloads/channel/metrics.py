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
        "a message there and back (pattern=latency), or a step of all workers (parameter_server)",
        has_interval=True,
    ),
    Metric(
        "sent_bytes_per_second",
        "B/s",
        "higher",
        "bytes of messages, or a collective / time",
        has_interval=True,
    ),
    *in_section(
        "messages",
        Metric(
            "bus_bytes_per_second",
            "B/s",
            "higher",
            "of a collective, on each process's link",
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
