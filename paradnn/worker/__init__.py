"""The worker: the code that the interpreter under test imports.

It needs Keras 3, a framework and NumPy, and nothing else; of `paradnn` it imports this package and
what needs no more. `python -m paradnn.worker` speaks JSON lines with the driver (see
`paradnn.core.messages`).
"""
