"""Tests of openai."""

import asyncio
import json
import threading
import time

import openai

from harness import (CALL, NOBODY, REPLICA_A, REPLICA_B, SCHEMA, TOOLS, Waited, aborted, counted, equal, faults, key, label,
                     named, request, retried, retry_after, statuses, test, thrown)

common = key()


def at(url, api_key, **more):
    return openai.OpenAI(base_url=url + "/v1", api_key=api_key, **more)


client = at(REPLICA_A, common)
other = at(REPLICA_B, common)


def say(text, who=client, **more):
    more.setdefault("model", "qwen")
    return who.chat.completions.create(messages=[{"role": "user", "content": text}], **more)


@test
def _():
    """openai: chat"""
    id = label()
    raw = client.chat.completions.with_raw_response.create(model="qwen", messages=[{"role": "user", "content": "hi"}], extra_headers=named(id))
    answer = raw.parse()
    assert answer.choices[0].message.content
    equal([answer._request_id, raw.headers["x-headgate-backend"][0]], [id, "b"])
    counted(id, answer.usage.prompt_tokens, answer.usage.completion_tokens)


@test
def _():
    """openai: stream, the usage asked for"""
    id = label()
    whole = say("tell").choices[0].message.content
    chunks = list(say("tell", stream=True, stream_options={"include_usage": True}, extra_headers=named(id)))
    usage = chunks[-1].usage
    equal("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), whole)
    equal([sum(1 for c in chunks if c.usage), len(chunks)], [1, usage.completion_tokens + 2])
    counted(id, usage.prompt_tokens, usage.completion_tokens)


@test
def _():
    """openai: stream, no usage asked for"""
    id = label()
    chunks = list(say("tell", other, stream=True, extra_headers=named(id)))
    assert all(len(c.choices) == 1 and c.usage is None for c in chunks)
    lines, engine = request(id, 1)
    equal([len(chunks), lines[0]["completion_tokens"], lines[0]["usage_source"]], [engine[0]["output"] + 1, engine[0]["output"], "backend"])


@test
def _():
    """openai: many at a time, asynchronously"""

    async def all():
        async with openai.AsyncOpenAI(base_url=REPLICA_A + "/v1", api_key=common) as c:
            return await asyncio.gather(*(c.chat.completions.create(model="qwen", messages=[{"role": "user", "content": f"hi {i}"}]) for i in range(40)))

    assert len({a.choices[0].message.content for a in asyncio.run(all())}) == 40


@test
def _():
    """openai: tools, and their result sent back"""
    first = say("weather?", tools=TOOLS, tool_choice="required").choices[0]
    call = first.message.tool_calls[0]
    equal([call.function.name, json.loads(call.function.arguments), first.finish_reason], ["weather", CALL, "tool_calls"])
    messages = [{"role": "user", "content": "weather?"}, first.message, {"role": "tool", "tool_call_id": call.id, "content": "12 C"}]
    assert client.chat.completions.create(model="qwen", messages=messages, tools=TOOLS).choices[0].message.content


@test
def _():
    """openai: tools streamed"""
    choice = {"type": "function", "function": {"name": "weather"}}
    with client.chat.completions.stream(model="qwen", messages=[{"role": "user", "content": "weather?"}], tools=TOOLS, tool_choice=choice) as stream:
        events = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    equal([json.loads(e.arguments) for e in events], [CALL])
    equal(final.choices[0].message.tool_calls[0].function.name, "weather")


@test
def _():
    """openai: completions"""
    id = label()
    answer = client.completions.create(model="qwen", prompt="once", max_tokens=5, extra_headers=named(id))
    assert answer.choices[0].text
    counted(id, answer.usage.prompt_tokens, 5)


@test
def _():
    """openai: embeddings"""
    id = label()
    packed = client.embeddings.create(model="qwen", input=["one", "two"], extra_headers=named(id))  # asks for base64
    floats = client.embeddings.create(model="qwen", input=["one", "two"], encoding_format="float")
    for i, n in enumerate(packed.data[1].embedding):
        assert abs(n - floats.data[1].embedding[i]) < 1e-5, i
    lines, engine = request(id, 1)
    equal([lines[0]["prompt_tokens"], engine[0]["prompt"]], [packed.usage.prompt_tokens] * 2)
    assert "base64" in engine[0]["body"]


@test
def _():
    """openai: responses, over two replicas"""
    id = label()
    first = client.responses.create(model="qwen", input="hi", extra_headers=named(id))
    assert first.output_text
    counted(id, first.usage.input_tokens, first.usage.output_tokens)
    second = other.responses.create(model="qwen", input="and then?", previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    equal(other.responses.retrieve(first.id).output_text, first.output_text)
    thrown(openai.NotFoundError, lambda: client.responses.retrieve("resp_0123"))


@test
def _():
    """openai: responses streamed"""
    id = label()
    events = list(client.responses.create(model="qwen", input="tell", stream=True, extra_headers=named(id)))
    equal([e.sequence_number for e in events], list(range(len(events))))
    final = events[-1].response
    equal("".join(e.delta for e in events if e.type == "response.output_text.delta"), final.output_text)
    counted(id, final.usage.input_tokens, final.usage.output_tokens)


@test
def _():
    """openai: responses with a tool, streamed"""
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}
    with client.responses.stream(model="qwen", input="hi", tools=[tool], tool_choice="required") as stream:
        partial = "".join(e.delta for e in stream if e.type == "response.function_call_arguments.delta")
        item = stream.get_final_response().output[0]
    equal([item.name, json.loads(item.arguments), json.loads(partial)], ["weather", CALL, CALL])


@test
def _():
    """openai: transcription"""
    assert client.audio.transcriptions.create(file=("a.wav", bytes(40_000)), model="qwen").text


@test
def _():
    """openai: models"""
    equal(sorted(m.id for m in client.models.list()), ["other", "qwen"])
    equal(client.models.retrieve("qwen").id, "qwen")


def typed(kind, status, code, type, make):
    def run():
        id = label()
        who, change = make()
        error = thrown(kind, lambda: say("hi", who, extra_headers=named(id), **change))
        equal([error.status_code, error.code, error.type, error.request_id], [status, code, type, id])
        assert error.body["message"]
        statuses(id, status)
        thrown(kind, lambda: say("hi", who, stream=True, **change))

    run.__doc__ = f"openai: {code} is a {kind.__name__}, and not asked for again"
    test(run)


typed(openai.AuthenticationError, 401, "invalid_api_key", "authentication_error", lambda: (at(REPLICA_A, NOBODY), {}))
typed(openai.PermissionDeniedError, 403, "model_not_allowed", "permission_error", lambda: (at(REPLICA_A, key("--models", "other")), {}))
typed(openai.NotFoundError, 404, "model_not_found", "not_found_error", lambda: (client, {"model": "nothing"}))
typed(openai.BadRequestError, 400, "invalid_field", "invalid_request_error", lambda: (client, {"n": "two"}))
typed(openai.BadRequestError, 400, "400", "BadRequestError", lambda: (client, {"max_tokens": 100_000}))  # the engine's own
typed(openai.RateLimitError, 429, "insufficient_quota", "insufficient_quota", lambda: (at(REPLICA_A, key("--budget", "0.000001/month")), {}))


@test
def _():
    """openai: a rate limit of both replicas"""
    narrow = key("--rpm", "1")
    say("hi", at(REPLICA_A, narrow))
    error = thrown(openai.RateLimitError, lambda: say("hi", at(REPLICA_B, narrow, max_retries=0)))
    equal([error.code, error.type], ["rate_limit_exceeded", "rate_limit_error"])
    h = error.response.headers
    retry_after(h)
    equal([h["x-ratelimit-limit-requests"], h["x-ratelimit-remaining-requests"]], ["1", "0"])


@test
def _():
    """openai: retries what is full, after Retry-After"""
    id = label()
    faults({"kind": "503", "times": 1})
    with Waited(1):
        say("hi", extra_headers=named(id))
    statuses(id, 503, 200)


@test
def _():
    """openai: retries an engine's failure, streamed"""
    id = label()
    faults({"kind": "500", "times": 1})
    list(say("hi", stream=True, extra_headers=named(id)))
    statuses(id, 502, 200)


@test
def _():
    """openai: retries while another request of the key runs"""
    single = at(REPLICA_A, key("--parallel", "1"), max_retries=5)
    id = label()
    faults({"kind": "slow", "times": 1, "delay": "20ms"}, {"kind": "slow", "delay": "1ms"})
    running = threading.Thread(target=list, args=[say("tell", single, stream=True)])
    running.start()
    say("hi", single, extra_headers=named(id))
    running.join()
    retried(id, 429)


@test
def _():
    """openai: aborted in mid-stream"""
    id = label()
    faults({"kind": "slow", "delay": "50ms"})
    stream = say("tell", stream=True, extra_headers=named(id))
    for _ in range(3):
        next(stream)
    stream.close()
    aborted(id, time.time())


@test
def _():
    """openai: its own timeout while it waits"""
    id = label()
    faults({"kind": "hang_before_head"})
    thrown(openai.APITimeoutError, lambda: say("tell", at(REPLICA_A, common, timeout=0.3, max_retries=0), extra_headers=named(id)))
    lines, _ = request(id, 1)
    equal(lines[0]["outcome"], "client_gone")


@test
def _():
    """openai: a stream that breaks off"""
    id = label()
    faults({"kind": "cut", "after": 5, "times": 1})
    chunks = []
    error = thrown(openai.APIError, lambda: chunks.extend(c for c in say("tell", stream=True, extra_headers=named(id))))
    equal([error.code, error.type], ["stream_truncated", "upstream_error"])
    equal(request(id, 1)[0][0]["outcome"], "upstream_truncated")


@test
def _():
    """openai: a response that breaks off"""
    faults({"kind": "cut", "after": 8, "times": 1})
    error = thrown(openai.APIError, lambda: list(client.responses.create(model="qwen", input="tell", stream=True)))
    equal(error.code, "stream_truncated")
