"""Where the time of a step goes: from a profiler's trace to a table of operations (`run`).

protos     the two public formats, XSpace (traces) and HLO (compiled programs), as far as they are read
trace      an XSpace trace -> events of operations, how long each ran, and the compiled programs in it
kineto     the same from PyTorch's trace
categories what kind of work an operation does, by its name
shapes     FLOPs and bytes of an operation from its shapes, in one place
tf_graph   shapes of a TensorFlow graph's operations
hlo        FLOPs and bytes of a compiled program's instructions, fusions included
"""
