"""A scripted model server for tests: real HTTP on loopback, replies written down beforehand.

Speaks OpenAI chat completions, OpenAI responses and Anthropic messages, plain and streaming, so
an agent under test keeps its own client library. It never thinks: what is not scripted is refused.
"""

from proctor.llm.mock.script import Reply, Script, ScriptRequest, load_script
from proctor.llm.mock.server import MockLLM

__all__ = ["MockLLM", "Reply", "Script", "ScriptRequest", "load_script"]
