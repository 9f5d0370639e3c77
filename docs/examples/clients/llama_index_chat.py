"""LlamaIndex: chat and stream. Needs OPENAI_BASE_URL (…/v1), OPENAI_API_KEY, MODEL."""

import os

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model=os.environ.get("MODEL", "GLM-5.3-Flash-EXL3"),
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
    is_chat_model=True,  # else the raw completions route would be used, without the chat template
    is_function_calling_model=True,
    context_window=524_288,
    temperature=0,
    max_tokens=48,
)
question = [ChatMessage(role="user", content="What is the capital of France?")]
print("whole:", llm.chat(question).message.content)
print("streamed:", "".join(piece.delta or "" for piece in llm.stream_chat(question)))
