"""Experiments whose trials are chosen from results so far: curriculum, adaptive, ablation, sweep.

`resolve` makes an `Outline` of what the experiment says; `unfold` follows its rounds through the
journal of a run. Each option is a module of its own: a generator of rounds.
"""
