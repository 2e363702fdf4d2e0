"""The metrics of messages between processes."""

from paradnn.core.metric import Metric, in_section

METRICS = (
    Metric(
        "transfer_us",
        "us",
        "lower",
        "time of one message in one direction, or of one collective",
        has_interval=True,
    ),
    Metric(
        "round_trip_us",
        "us",
        "lower",
        "time of a message and its echo (model.pattern=latency), or of a step of all workers "
        "(model.pattern=parameter_server)",
        has_interval=True,
    ),
    Metric(
        "sent_bytes_per_second",
        "B/s",
        "higher",
        "bytes of all messages, or of the collective / time",
        has_interval=True,
    ),
    *in_section(
        "messages",
        Metric(
            "bus_bytes_per_second",
            "B/s",
            "higher",
            "bytes that the link of each process carries in a collective / time",
            has_interval=True,
        ),
        Metric(
            "messages_per_second",
            "1/s",
            "higher",
            "messages of all senders per second, or collectives per second",
            has_interval=True,
        ),
    ),
)
