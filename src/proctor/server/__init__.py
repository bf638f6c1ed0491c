"""The server: OTLP in, a trace store, evaluation in the background, pages out.

Start at `app.py`. Everything here needs the extra `server`, except the store.
"""
