"""Stream an answer by OpenAI's own client: python docs/examples/chat/openai_client.py localhost:9000 'Why is the sky blue?'"""

from __future__ import annotations

import sys

from openai import OpenAI

with OpenAI(base_url=f"http://{sys.argv[1]}/v1", api_key="none") as client:
    question = {"role": "user", "content": sys.argv[2]}
    for piece in client.chat.completions.create(model="chat", messages=[question], max_tokens=60, temperature=0, stream=True):
        if piece.choices:
            print(piece.choices[0].delta.content or "", end="", flush=True)
print()
