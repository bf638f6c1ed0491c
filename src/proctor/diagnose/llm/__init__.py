"""Diagnosis by a language model, in one pass or three, with the offline findings as fallback.

Start at `detector`. Nothing here depends on a provider: any `ChatModel` works.
"""
