"""The worker: what is imported in the interpreter under test.

It needs Keras 3, a framework and NumPy, and nothing else; of `paradnn` it imports this package and
what needs no more. `python -m paradnn.worker` speaks JSON lines with the driver (see
`paradnn.core.messages`).
"""
