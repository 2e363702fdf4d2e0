"""Operations that kernels need of a framework.

The module `{name}_operations` of a framework has these functions of the framework's tensors:

- cast(values, dtype), matmul(a, b, transpose_a, transpose_b), sigmoid, tanh, relu, sign,
  reshape(values, shape), concatenate(tensors, axis).
- scan(step, state, sequences, reverse): applies `step` along the first axis of `sequences`, from
  its end if `reverse`. Returns the last state and the outputs of all steps. A step takes the state
  and one element of each sequence, and returns the next state and outputs, all as tuples. Outputs
  have the positions of the elements that they follow from.
- convolution_forward(images, filters, kernel), convolution_backward_input(gradient, filters,
  kernel), convolution_backward_weights(images, gradient, kernel): the output of a
  `paradnn.families.kernels.Conv2d`, and the gradients of its sum.
- images(values, layout) and filters(values, layout): make the operands of these from images in
  `layout` and filters (height, width, in, out), with the same order in memory.
- sparse(counts, columns, values, shape): the framework's sparse matrix from its elements, row by
  row: the number of elements of each row, and their columns.
- sparse_matmul(sparse, dense): the product with a dense matrix.
- csr(counts, columns, values, shape) and csr_matmul(csr, dense): the same with compressed rows.
"""
