"""HTML pages of traces and runs, with JavaScript for the parts that change.

Text of agents is escaped by the template engine or inserted as text by the scripts. Pages are
read-only and load nothing from other hosts.
"""
