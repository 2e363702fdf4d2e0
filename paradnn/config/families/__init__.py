"""Families whose options are the driver's: messages."""
