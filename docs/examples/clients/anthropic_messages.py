"""Anthropic-style messages through vLLM's own /v1/messages. Needs ANTHROPIC_BASE_URL (without /v1),
ANTHROPIC_AUTH_TOKEN (it goes out as a bearer token, which is what the server asks for), MODEL."""

import os

from anthropic import Anthropic

client = Anthropic()  # reads ANTHROPIC_BASE_URL and ANTHROPIC_AUTH_TOKEN
model = os.environ.get("MODEL", "GLM-5.3-Flash-EXL3")
question = [{"role": "user", "content": "What is the capital of France?"}]
greedy = {"temperature": 0}  # newer versions of the SDK have no such argument of their own

answer = client.messages.create(model=model, max_tokens=48, messages=question, extra_body=greedy)
print("whole:", "".join(block.text for block in answer.content if block.type == "text"))
print(f"tokens: {answer.usage.input_tokens} in, {answer.usage.output_tokens} out")

with client.messages.stream(model=model, max_tokens=48, messages=question, extra_body=greedy) as stream:
    print("streamed:", "".join(stream.text_stream))
