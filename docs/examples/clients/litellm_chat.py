"""LiteLLM as a library: chat and stream. Needs OPENAI_BASE_URL (…/v1), OPENAI_API_KEY, MODEL."""

import os

os.environ.setdefault(
    "LITELLM_LOCAL_MODEL_COST_MAP", "True"
)  # else a price list is fetched from the internet

import litellm  # noqa: E402

where = {
    "model": "openai/" + os.environ.get("MODEL", "GLM-5.3-Flash-EXL3"),
    "api_base": os.environ["OPENAI_BASE_URL"],
    "api_key": os.environ.get("OPENAI_API_KEY", "none"),
    "max_tokens": 48,
    "temperature": 0,
}
question = [{"role": "user", "content": "What is the capital of France?"}]
print("whole:", litellm.completion(messages=question, **where).choices[0].message.content)
stream = litellm.completion(messages=question, stream=True, **where)
print("streamed:", "".join(event.choices[0].delta.content or "" for event in stream))
