"""Messages between processes, where they were before: `python -m paradnn.worker.communication.peer`."""
