"""Reports: the same facts in every format people and programs read.

`facts` says what there is to tell; each other module writes it one way. Nothing here computes.
"""
