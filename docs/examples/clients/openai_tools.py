"""A tool call and its result with the OpenAI SDK. Needs OPENAI_BASE_URL (…/v1), OPENAI_API_KEY, MODEL."""

import json
import os

from openai import OpenAI

client = OpenAI()
model = os.environ.get("MODEL", "GLM-5.3-Flash-EXL3")
tools = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Temperature of a city in degrees Celsius.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
messages = [{"role": "user", "content": "How warm is it: weather in Paris?"}]

first = client.chat.completions.create(model=model, messages=messages, tools=tools, max_tokens=400)
message = first.choices[0].message
messages.append(message.model_dump(exclude_none=True))
for call in message.tool_calls or []:
    wanted = json.loads(call.function.arguments)
    print("asked for:", call.function.name, wanted)
    result = {"city": wanted["city"], "celsius": 21}  # your own function goes here
    messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})

last = client.chat.completions.create(model=model, messages=messages, tools=tools, max_tokens=400)
print("answer:", last.choices[0].message.content)
