"""Forecast of the duration of a sweep from similar past runs and from the cost model."""

from __future__ import annotations
