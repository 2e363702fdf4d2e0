"""The metrics of inference under load."""

from paradnn.core.metric import Metric, in_section

METRICS = (
    Metric(
        "queries_per_second",
        "1/s",
        "higher",
        "queries served / time from the first scheduled query to the end of the last batch",
    ),
    Metric(
        "peak_queries_per_second",
        "1/s",
        "higher",
        "highest rate found that met the limit",
        has_interval=True,
    ),
    Metric(
        "goodput_per_second",
        "1/s",
        "higher",
        "queries answered within server.latency_ms / the same time as in queries_per_second",
    ),
    Metric(
        "latency_early_stopping_ms",
        "ms",
        "lower",
        "upper bound of a stream scenario's latency percentile, by LoadGen's early stopping",
    ),
    *in_section(
        "latency",
        Metric(
            "latency_p95_ms",
            "ms",
            "lower",
            "95th percentile of a query's latency",
            has_interval=True,
        ),
        Metric(
            "latency_p99.9_ms",
            "ms",
            "lower",
            "99.9th percentile of a query's latency",
            has_interval=True,
        ),
        Metric(
            "queue_mean_ms",
            "ms",
            "lower",
            "mean time from a query's scheduled time to the start of its batch",
        ),
        Metric(
            "queue_p50_ms",
            "ms",
            "lower",
            "median time from a query's scheduled time to the start of its batch",
        ),
        Metric(
            "queue_p99_ms",
            "ms",
            "lower",
            "99th percentile of the time from a query's scheduled time to the start of its batch",
        ),
        Metric("service_mean_ms", "ms", "lower", "mean duration of a query's batch"),
        Metric("service_p50_ms", "ms", "lower", "median duration of a query's batch"),
        Metric(
            "service_p99_ms", "ms", "lower", "99th percentile of the duration of a query's batch"
        ),
        Metric(
            "latency_mean_ms", "ms", "lower", "mean latency of a query, from its scheduled time"
        ),
        Metric("latency_max_ms", "ms", "lower", "longest latency of a query"),
        Metric(
            "single_query_ms",
            "ms",
            "lower",
            "median service time of a query that is served alone, before the load",
        ),
    ),
    *in_section(
        "load",
        Metric("queries", "1", None, "queries that were served"),
        Metric("queries_per_batch", "1", None, "mean number of queries that were served at once"),
        Metric("scheduled_queries_per_second", "1/s", None, "mean arrival rate of the schedule"),
        Metric(
            "in_time_fraction",
            "1",
            "higher",
            "share of the queries that were answered within the time limits",
        ),
        Metric(
            "failed_queries_per_second",
            "1/s",
            None,
            "lowest failed rate above peak_queries_per_second; absent unless every process has one",
        ),
        Metric(
            "generator_late_p99_ms",
            "ms",
            "lower",
            "99th percentile of the delay between a query's scheduled and actual issue",
        ),
        Metric(
            "generator_late_max_ms",
            "ms",
            "lower",
            "longest delay between a query's scheduled and actual issue",
        ),
    ),
    *in_section(
        "energy",
        Metric(
            "energy_per_query_joules",
            "J",
            "lower",
            "energy of the package or board under load / queries",
        ),
        Metric(
            "energy_per_query_above_idle_joules",
            "J",
            "lower",
            "energy_per_query_joules - power_idle_watts x duration of the load / queries",
        ),
    ),
)
