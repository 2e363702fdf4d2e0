"""Kinds of work, a file or a folder each: a step, generation, training, serving, messages.

Each holds its options, its measurement in the worker, its metrics and its texts
(`paradnn.core.workload`).
"""
