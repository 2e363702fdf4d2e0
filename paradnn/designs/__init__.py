"""Which points of a space to measure: those that teach most for their time, and none that memory
excludes.
"""
