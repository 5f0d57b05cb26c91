"""Tests of litellm as a client."""

import json
import os
import time

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network while it is imported

import litellm  # noqa: E402

from harness import (CALL, NOBODY, REPLICA_A, REPLICA_B, TOOLS, Waited, aborted, counted, equal, faults, key, label, named,  # noqa: E402
                     request, retry_after, statuses, test, thrown)

litellm.telemetry = False
litellm.suppress_debug_info = True
common = key()


def say(text, url=REPLICA_A, api_key=common, model="openai/qwen", **more):
    more.setdefault("max_retries", 0)
    base = url if model.startswith("anthropic/") else url + "/v1"
    return litellm.completion(model=model, api_base=base, api_key=api_key, messages=[{"role": "user", "content": text}], **more)


@test
def _():
    """litellm: chat"""
    id = label()
    answer = say("hi", extra_headers=named(id))
    assert answer.choices[0].message.content
    counted(id, answer.usage.prompt_tokens, answer.usage.completion_tokens)


@test
def _():
    """litellm: stream"""
    id = label()
    whole = say("tell").choices[0].message.content
    chunks = list(say("tell", REPLICA_B, stream=True, stream_options={"include_usage": True}, extra_headers=named(id)))
    equal("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), whole)
    usage = litellm.stream_chunk_builder(chunks).usage
    counted(id, usage.prompt_tokens, usage.completion_tokens)


@test
def _():
    """litellm: tools"""
    choice = say("weather?", tools=TOOLS, tool_choice="required").choices[0]
    call = choice.message.tool_calls[0].function
    equal([call.name, json.loads(call.arguments), choice.finish_reason], ["weather", CALL, "tool_calls"])


@test
def _():
    """litellm: tools streamed"""
    chunks = list(say("weather?", tools=TOOLS, tool_choice="required", stream=True))
    call = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0].function
    equal([call.name, json.loads(call.arguments)], ["weather", CALL])


@test
def _():
    """litellm: embeddings"""
    id = label()
    answer = litellm.embedding(model="openai/qwen", api_base=REPLICA_A + "/v1", api_key=common, input=["one", "two"], extra_headers=named(id))
    equal(len(answer.data), 2)
    equal(request(id, 1)[0][0]["prompt_tokens"], answer.usage.prompt_tokens)


@test
def _():
    """litellm: responses"""
    id = label()
    answer = litellm.responses(model="openai/qwen", api_base=REPLICA_A + "/v1", api_key=common, input="hi", extra_headers=named(id))
    assert answer.output[0].content[0].text
    counted(id, answer.usage.input_tokens, answer.usage.output_tokens)


@test
def _():
    """litellm: messages"""
    id = label()
    answer = say("hi", model="anthropic/qwen", max_tokens=100, extra_headers=named(id))
    equal(request(id, 1)[1][0]["path"], "/v1/messages")
    counted(id, answer.usage.prompt_tokens, answer.usage.completion_tokens)


@test
def _():
    """litellm: messages streamed"""
    id = label()
    chunks = list(say("tell", model="anthropic/qwen", max_tokens=100, stream=True, stream_options={"include_usage": True}, extra_headers=named(id)))
    usage = litellm.stream_chunk_builder(chunks).usage
    counted(id, usage.prompt_tokens, usage.completion_tokens)


def typed(kind, status, code, make):
    def run():
        id = label()
        error = thrown(kind, lambda: say("hi", extra_headers=named(id), **make()))
        equal(error.status_code, status)
        assert code in str(error), error
        statuses(id, status)

    run.__doc__ = f"litellm: {code} is a {kind.__name__}"
    test(run)


typed(litellm.AuthenticationError, 401, "API key", lambda: {"api_key": NOBODY})
typed(litellm.APIError, 403, "may not use", lambda: {"api_key": key("--models", "other")})
typed(litellm.NotFoundError, 404, "nothing", lambda: {"model": "openai/nothing"})
typed(litellm.BadRequestError, 400, "field n", lambda: {"n": "two"})
typed(litellm.ContextWindowExceededError, 400, "maximum context length", lambda: {"max_tokens": 100_000})
typed(litellm.RateLimitError, 429, "budget", lambda: {"api_key": key("--budget", "0.000001/month"), "max_retries": 2})


@test
def _():
    """litellm: a rate limit of both replicas"""
    narrow = key("--rpm", "1")
    say("hi", api_key=narrow)
    error = thrown(litellm.RateLimitError, lambda: say("hi", REPLICA_B, narrow))
    retry_after(error.response.headers)


@test
def _():
    """litellm: retries what is full, after Retry-After"""
    id = label()
    faults({"kind": "503", "times": 1})
    with Waited(1):
        say("hi", max_retries=2, extra_headers=named(id))
    statuses(id, 503, 200)


@test
def _():
    """litellm: aborted in mid-stream"""
    id = label()
    faults({"kind": "slow", "delay": "50ms"})
    stream = say("tell", stream=True, extra_headers=named(id))
    for _ in range(3):
        next(stream)
    stream.completion_stream.close()
    aborted(id, time.time())


@test
def _():
    """litellm: a stream that breaks off"""
    id = label()
    faults({"kind": "cut", "after": 5, "times": 1})
    thrown(litellm.exceptions.MidStreamFallbackError, lambda: list(say("tell", stream=True, extra_headers=named(id))))
    equal(request(id, 1)[0][0]["outcome"], "upstream_truncated")
