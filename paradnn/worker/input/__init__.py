"""Input from files with TensorFlow's tf.data.

`pipelines` builds the pipelines, and generates a set of images if the user provides none. `feed`
passes their batches to the step, and measures waiting times and processor time. Measurements with
synthetic data do not import this package.
"""
