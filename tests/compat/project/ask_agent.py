"""An agent that calls its model with httpx: its requests do not depend on client libraries."""

import os

import httpx


def answer(question: str) -> str:
    """Ask the model once."""
    body = {"model": "shop-model", "messages": [{"role": "user", "content": question}]}
    reply = httpx.post(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", json=body)
    reply.raise_for_status()
    return reply.json()["choices"][0]["message"]["content"]
