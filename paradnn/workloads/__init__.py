"""Kinds of work, one module or package each: step, generation, training, serving, messages.

Each kind defines its options, its measurement in the worker, its metrics and its report texts
(`paradnn.core.workload`).
"""
