"""Input from files: pipelines of tf.data, what a step waits for them, and what they cost the host.

`generated` makes and checks the sets that are used where the user names none; `images` and `text` build the pipelines,
stage by stage; `feed` hands batches to the step and counts; `balance` measures. TensorFlow is imported by
`opening.open_feed` alone: a point with synthetic data, and every other framework, needs none of it.
"""
