"""What the kernels ask of a framework, whose module `{name}_operations` has these as functions of
its own tensors:

cast(values, dtype), matmul(a, b, transpose_a, transpose_b), sigmoid, tanh, relu, sign,
reshape(values, shape), concatenate(tensors, axis).

scan(step, state, sequences, reverse): (last state, outputs of all steps) of `step` along the first
axis of `sequences`; `reverse`: from its end. A step takes the state and one of each sequence, and
gives the next state and outputs, all tuples; outputs stand where the sequences' elements stood that
they were made of.

convolution_forward(images, filters, kernel), convolution_backward_input(gradient, filters, kernel)
and convolution_backward_weights(images, gradient, kernel): the output, and the gradients of a sum
of it, of a `paradnn.families.kernels.Conv2d`; images(values, layout) and filters(values, layout)
make the operands of these from images in `layout` and filters (height, width, in, out), in the same
order in memory.

sparse(counts, columns, values, shape): the framework's sparse matrix from its elements, row by row:
how many each row has, their columns; sparse_matmul(sparse, dense): its product with a dense matrix.
"""
