"""Predictions of step times and of the duration of a sweep, from past runs and analytic costs."""

from __future__ import annotations
