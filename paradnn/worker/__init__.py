"""The worker: the process that imports a framework, and times and profiles models with it.

It runs in the interpreter under test. It needs only Keras 3, a framework and NumPy, and imports no
package of `paradnn` that needs more. `python -m paradnn.worker` exchanges JSON lines with the
driver (see `paradnn.core.messages`).
"""
