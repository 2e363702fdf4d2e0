"""Parts of models: kernel operations of each framework, Keras layers, readers of model files.

Each module `{framework}_operations` defines the same functions of the framework's tensors:

- cast(values, dtype), matmul(a, b, transpose_a, transpose_b), sigmoid, tanh, relu, sign,
  reshape(values, shape), concatenate(tensors, axis).
- scan(step, state, sequences, reverse): applies `step` along the first axis of `sequences`,
  backwards if `reverse` is true. `step` receives the state and one element of each sequence, and
  returns the next state and its outputs, all as tuples. `scan` returns the last state and the
  stacked outputs of all steps, in the order of the sequences.
- convolution_forward(images, filters, kernel): the output of a `paradnn.families.kernels.Conv2d`.
- convolution_backward_input(gradient, filters, kernel): the gradient of the input, from the
  gradient of the output.
- convolution_backward_weights(images, gradient, kernel): the gradient of the weights, from the
  gradient of the output.
- images(values, layout) and filters(values, layout): convert images in `layout`, and filters
  (height, width, in, out), to operands of the convolutions in the same memory layout.
- sparse(counts, columns, values, shape): a sparse matrix in the framework's default format.
  `counts` gives the number of elements in each row; `columns` and `values` describe all elements,
  row by row.
- sparse_matmul(sparse, dense): the product of a matrix made by `sparse` and a dense matrix.
- csr(counts, columns, values, shape): a sparse matrix in CSR format (compressed rows), with the
  arguments of `sparse`.
- csr_matmul(csr, dense): the product of a matrix made by `csr` and a dense matrix.
"""
