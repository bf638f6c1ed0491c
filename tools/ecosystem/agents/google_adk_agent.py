"""An agent of Google's Agent Development Kit, with a Gemini model."""

from google.adk.agents import Agent
from google.adk.runners import InMemoryRunner
from google.genai import types
from weather import get_weather


async def answer(question: str) -> str:
    agent = Agent(name="weather", model="gemini-2.5-flash", tools=[get_weather])
    runner = InMemoryRunner(agent, app_name="weather")
    session = await runner.session_service.create_session(app_name="weather", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=question)])
    said = ""
    async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
        if event.is_final_response() and event.content and event.content.parts:
            said = "".join(part.text or "" for part in event.content.parts)
    await runner.close()
    return said
