"""The analyses, one file each: options, numbers, sentences, table, picture, and its place in the
report.
"""
