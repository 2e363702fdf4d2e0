"""The operations of kernels in each framework, and Keras layers and readers of model files.

The module `{framework}_operations` has these functions of the framework's tensors:

- cast(values, dtype), matmul(a, b, transpose_a, transpose_b), sigmoid, tanh, relu, sign,
  reshape(values, shape), concatenate(tensors, axis).
- scan(step, state, sequences, reverse): applies `step` along the first axis of `sequences`,
  backwards if `reverse`. A step takes the state and one element of each sequence, and returns the
  next state and its outputs, all as tuples. Returns the last state and the stacked outputs of all
  steps, in the order of the sequences.
- convolution_forward(images, filters, kernel): the output of a `paradnn.families.kernels.Conv2d`.
- convolution_backward_input(gradient, filters, kernel) and convolution_backward_weights(images,
  gradient, kernel): the gradients of the input and of the weights; `gradient` is that of the
  output.
- images(values, layout) and filters(values, layout): convert images in `layout`, and filters
  (height, width, in, out), to operands of the convolutions in the same memory layout.
- sparse(counts, columns, values, shape): a sparse matrix in the framework's usual format. `counts`
  has the number of elements of each row; `columns` and `values` have all elements, row by row.
- sparse_matmul(sparse, dense): the product of such a matrix with a dense matrix.
- csr(counts, columns, values, shape) and csr_matmul(csr, dense): the same two functions for a
  matrix with compressed rows (CSR).
"""
