"""An agent after a change."""

from proctor import capture, tool


@tool
def search(q: str, n: int) -> list[str]:
    """What is found."""
    return ["Paris is the capital of France."][:n]


def answer(question: str) -> str:
    """Looks it up, and lets a model put it in words."""
    search(question, n=5)
    with capture.llm_call("model-1") as step:
        step.cost_usd = 0.05
    return "The capital of France is Lyon."
