"""Kinds of work, a file or a folder each: options, what the worker does, metrics, words
(`paradnn.core.workload`).
"""
