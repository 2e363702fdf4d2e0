"""`python -m paradnn.worker.communication.peer`: see `paradnn.workloads.channel.peer`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("paradnn.workloads.channel.peer", run_name="__main__")
