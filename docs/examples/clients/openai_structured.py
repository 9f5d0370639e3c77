"""An answer that follows a JSON schema, with the OpenAI SDK. Needs OPENAI_BASE_URL, OPENAI_API_KEY, MODEL."""

import json
import os

from openai import OpenAI

client = OpenAI()
schema = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "capital": {"type": "boolean"},
    },
    "required": ["city", "capital"],
    "additionalProperties": False,
}
answer = client.chat.completions.create(
    model=os.environ.get("MODEL", "GLM-5.3-Flash-EXL3"),
    messages=[{"role": "user", "content": "Is Paris the capital of France? Answer as JSON."}],
    response_format={
        "type": "json_schema",
        "json_schema": {"name": "city", "schema": schema, "strict": True},
    },
    max_tokens=64,
    temperature=0,
)
print(json.loads(answer.choices[0].message.content))
