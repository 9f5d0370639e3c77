"""A picture in a request, with the OpenAI SDK. Needs OPENAI_BASE_URL, OPENAI_API_KEY, MODEL.

usage: openai_vision.py [PICTURE.png]     without a picture, a red square of 64 by 64 pixels is made
"""

import base64
import os
import struct
import sys
import zlib
from pathlib import Path

from openai import OpenAI


def red_square(side: int = 64) -> bytes:
    """A PNG, made by hand so that this file needs nothing else."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


picture = Path(sys.argv[1]).read_bytes() if len(sys.argv) > 1 else red_square()
url = "data:image/png;base64," + base64.b64encode(picture).decode()
answer = OpenAI().chat.completions.create(
    model=os.environ.get("MODEL", "GLM-5.3-Flash-EXL3"),
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is in this picture?"},
                {"type": "image_url", "image_url": {"url": url}},
            ],
        }
    ],
    max_tokens=200,
)
print(answer.choices[0].message.content)
