"""Foundation of driver, worker and analyses: options, errors, registries, costs, messages.

The package needs only the standard library.
"""
