"""What a run measures, as frozen dataclasses checked once: points, families, data, identities,
outcomes.
"""
