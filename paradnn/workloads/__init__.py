"""Kinds of work, one file or folder each: a step, generation, training, serving, messages.

A kind of work holds its options, its measurement in the worker, its metrics and its texts
(`paradnn.core.workload`).
"""
