"""What driver, worker and analysis are built on, with the standard library alone: options, words,
registries.
"""
