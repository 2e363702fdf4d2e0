"""Foundation of driver, worker and analyses with the standard library alone: options, errors,
registries, messages.
"""
