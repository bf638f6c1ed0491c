"""The run folder: how trials are stored and read back.

`RunFolder` owns the folder, `Journal` and `segments` its two growing files, `Run` reads it.
"""
