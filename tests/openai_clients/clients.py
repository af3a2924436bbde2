"""Programs on LangChain and LiteLLM, for an environment that has these: python clients.py BASE_URL. The last line of the output
is what came of it, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any


def langchain(base: str) -> dict[str, Any]:
    """Texts, streams, tools, structured output and probabilities by langchain-openai."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAI
    from pydantic import BaseModel

    class Place(BaseModel):
        """A place."""

        city: str

    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return city

    chat = ChatOpenAI(model="engine", base_url=base, api_key="none", max_retries=0, seed=1)
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'
    bound = chat.bind_tools([weather])
    forced = chat.bind_tools([weather], tool_choice="weather")
    streamed = None
    for chunk in bound.stream(call):
        streamed = chunk if streamed is None else streamed + chunk
    said = chat.invoke("Hello!")
    structured = chat.with_structured_output(Place, method="json_schema").invoke('{"city": "Bern"}')
    by_tool = chat.with_structured_output(Place, method="function_calling").invoke('{"city": "Bern"}')
    probabilities = chat.bind(logprobs=True, top_logprobs=1).invoke("abcd").response_metadata["logprobs"]["content"]
    completion = OpenAI(model="engine", base_url=base, api_key="none", max_retries=0, n=2, best_of=2).generate(["abc"])
    return {
        "said": said.content,
        "usage": said.usage_metadata["total_tokens"],
        "pieces": [chunk.content for chunk in chat.stream("Hello!") if chunk.content],
        "usage of a stream": [
            c.usage_metadata["total_tokens"] for c in chat.stream("Hello!", stream_usage=True) if c.usage_metadata
        ],
        "called": [(each["name"], each["args"]) for each in bound.invoke(call).tool_calls],
        "called in a stream": [(each["name"], each["args"]) for each in streamed.tool_calls],
        "forced": [(each["name"], each["args"]) for each in forced.invoke('{"city": "Rome"}').tool_calls],
        "structured": structured.city,
        "structured by a tool": by_tool.city,
        "probabilities": [each["token"] for each in probabilities],
        "choices": [each.text for each in completion.generations[0]],
    }


def litellm(base: str) -> dict[str, Any]:
    """The same by litellm, as its proxy asks servers that speak OpenAI's API."""
    import litellm

    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'

    def ask(text: str, **more: Any) -> Any:
        messages = [{"role": "user", "content": text}]
        return litellm.completion(model="openai/engine", api_base=base, api_key="none", messages=messages, num_retries=0, **more)

    stream = list(ask("Hello!", stream=True, stream_options={"include_usage": True}))
    whole = litellm.stream_chunk_builder(list(ask(call, stream=True, tools=tools)))
    described = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    text = litellm.text_completion(
        model="text-completion-openai/engine", api_base=base, api_key="none", prompt="abc", num_retries=0
    )
    try:
        ask("a", temperature=3)
        refused = ""
    except litellm.BadRequestError as error:
        refused = str(error)
    return {
        "said": ask("Hello!", temperature=0.1, presence_penalty=0).choices[0].message.content,
        "choices": [choice.message.content for choice in ask("a", n=2).choices],
        "pieces": [chunk.choices[0].delta.content for chunk in stream if chunk.choices and chunk.choices[0].delta.content],
        "usage of a stream": [chunk.usage.total_tokens for chunk in stream if getattr(chunk, "usage", None)],
        "called": json.loads(ask(call, tools=tools).choices[0].message.tool_calls[0].function.arguments),
        "called in a stream": json.loads(whole.choices[0].message.tool_calls[0].function.arguments),
        "forced": ask("[]", tools=tools, tool_choice="required").choices[0].message.content,
        "structured": ask("{}", response_format=described).choices[0].message.content,
        "text": text.choices[0].text,
        "refused": "- at `$.temperature`" in refused,
    }


if __name__ == "__main__":
    print(json.dumps({"langchain": langchain(sys.argv[1]), "litellm": litellm(sys.argv[1])}))
