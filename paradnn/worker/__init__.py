"""The worker, which runs in the interpreter under test: fork server, frameworks, timing, profiles.

It needs only Keras 3, a framework and NumPy, and imports no package of `paradnn` that needs more.
`python -m paradnn.worker` exchanges JSON lines with the driver (see `paradnn.core.messages`).
"""
