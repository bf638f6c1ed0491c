"""Trials: run a plan of agents and cases, many times, with nothing lost and nothing invented.

`session.run_plan` drives; `perform` does one trial; `executors` say where trials run.
"""
