"""Input from files with TensorFlow's tf.data.

`pipelines` builds the pipelines, and generates sets of pictures if the user names none. `feed`
hands their batches to the step, and measures waiting times and the load of the host. A point with
synthetic data does not import this package.
"""
