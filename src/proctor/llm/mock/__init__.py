"""Scripted model server for tests: real HTTP on loopback, predefined replies.

Speaks OpenAI chat completions, OpenAI responses and Anthropic messages, plain and streaming, so an
agent under test keeps its own client library. Unscripted requests are rejected.
"""

from proctor.llm.mock._script import Reply, Script, ScriptRequest, load_script
from proctor.llm.mock._server import MockLLM, rendered_reply

__all__ = ["MockLLM", "Reply", "Script", "ScriptRequest", "load_script", "rendered_reply"]
