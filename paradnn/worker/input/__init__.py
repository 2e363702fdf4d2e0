"""Input from files: `pipelines` of tf.data and the sets that are made where the user names none;
`feed` hands their batches to the step and measures what it waits for them, and what they cost the
host. A point with synthetic data, and every other framework, needs no TensorFlow for it.
"""
