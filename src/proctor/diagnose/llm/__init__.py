"""Diagnosis by a language model, in one pass or three; without one the offline findings stand.

Start at `asked`. Nothing here knows a provider: any `ChatModel` will do.
"""
