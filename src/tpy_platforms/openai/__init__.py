"""The OpenAI frontend: completions, chat and embeddings of the models that take text, in the words of OpenAI's API.

    frontend    the options, and the port
    api         the routes: from a request to the reply
    requests    the documents that clients send, checked
    templates   from the messages of a chat to a prompt
    models      the inputs and outputs by which a model is known to take text, as Triton's OpenAI frontend has them
    answers     the documents and events that clients get

It asks models as every frontend does, and knows neither their backends nor their weights.
"""
