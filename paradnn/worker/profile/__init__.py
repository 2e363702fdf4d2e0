"""Where the time of a step goes: from a profiler's trace to a table of operations.

    protos     the two public formats, XSpace (traces) and HLO (compiled programs), as far as they are read
    trace      a trace folder -> events of operations and the compiled programs in it
    device     the plane of a GPU or a TPU in a trace
    timeline   events -> how long each operation ran, and which share of the step it explains
    shapes     FLOPs and bytes of an operation from its shapes, in one place
    graph      shapes of a TensorFlow graph's operations
    hlo        FLOPs and bytes of a compiled program's instructions, fusions included
    table      all of it as rows, one for each operation and one for each type

Nothing here knows Keras or runs a step; `paradnn.worker.profile.run` does.
"""
