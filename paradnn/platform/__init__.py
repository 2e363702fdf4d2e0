"""The machines and the software that points run on: detected, specified, judged, set, and made
ready.
"""
