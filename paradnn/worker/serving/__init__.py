"""Inference under load: queries that come by a scenario of MLPerf Inference, the serving of them, their latencies."""
