"""Trials: run agents on cases, many times, and record every result.

`target` and `resolve_experiment` find what to run, `prepare` builds the `RunContext`, `session`
runs the plan on an executor (`executor`, `ray`), and `run_trial` performs one trial.
"""
