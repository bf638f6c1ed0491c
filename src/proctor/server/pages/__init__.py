"""Pages for people: traces and runs, rendered here, with a little JavaScript for what moves.

Everything an agent said is escaped by the template engine or set as text by the scripts. Pages
read only; they load nothing from other hosts.
"""
