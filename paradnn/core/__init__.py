"""Base of driver, worker and analyses: options, errors, registries, analytic costs, messages.

It uses only the standard library.
"""
