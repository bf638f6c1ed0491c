"""Experiments that select trials from results so far: curriculum, adaptive, ablation, sweep.

`design` resolves the `research` section of an experiment to an `Outline`; `rounds` follows it
through the journal of a run. Each option is a module of its own: a generator of rounds.
"""
