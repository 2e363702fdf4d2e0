"""The process in the interpreter under test: fork server, frameworks, timing, profiles.

It needs Keras 3, a framework and NumPy, and nothing else. Of `paradnn` it imports this package and
others that have no further requirements. `python -m paradnn.worker` speaks JSON lines with the
driver (see `paradnn.core.messages`).
"""
