"""The ranges that numbers on the command line keep to, where several commands mean the same."""

from __future__ import annotations

import click

SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)
"""A share, a level or an error rate: nothing can be said at 0 or at 1 itself."""

POSITIVE = click.FloatRange(0, min_open=True)
"""Seconds to wait, a factor: 0 would do nothing at all."""
