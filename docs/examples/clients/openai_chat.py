"""Chat and a streamed answer with the OpenAI SDK. Needs OPENAI_BASE_URL (…/v1), OPENAI_API_KEY, MODEL."""

import os

from openai import OpenAI

client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
model = os.environ.get("MODEL", "GLM-5.3-Flash-EXL3")
question = [{"role": "user", "content": "What is the capital of France?"}]

answer = client.chat.completions.create(model=model, messages=question, max_tokens=48, temperature=0)
print("whole:", answer.choices[0].message.content)

stream = client.chat.completions.create(
    model=model,
    messages=question,
    max_tokens=48,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},  # token counts come in the last event
)
print("streamed: ", end="")
for event in stream:
    if event.choices:
        print(event.choices[0].delta.content or "", end="", flush=True)
    if event.usage:
        print(f"\ntokens: {event.usage.prompt_tokens} in, {event.usage.completion_tokens} out")
