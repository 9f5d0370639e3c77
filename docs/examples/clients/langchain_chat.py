"""LangChain: chat, stream and a bound tool. Needs OPENAI_BASE_URL (…/v1), OPENAI_API_KEY, MODEL.

TOOLS=0 leaves the tool out, for a server that was started without a tool parser.
"""

import os

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

chat = ChatOpenAI(
    model=os.environ.get("MODEL", "GLM-5.3-Flash-EXL3"),
    base_url=os.environ["OPENAI_BASE_URL"],
    temperature=0,
    max_tokens=48,
    stream_usage=True,
)
print("whole:", chat.invoke("What is the capital of France?").content)
print("streamed:", "".join(str(piece.content) for piece in chat.stream("What is the capital of France?")))


@tool
def get_weather(city: str) -> str:
    """Temperature of a city in degrees Celsius."""
    return f"21 degrees in {city}"


if os.environ.get("TOOLS") != "0":
    for call in chat.bind_tools([get_weather]).invoke("How warm is it: weather in Paris?").tool_calls:
        print("tool:", call["name"], call["args"], "->", get_weather.invoke(call["args"]))
