"""Tests of anthropic."""

import threading
import time

import anthropic

from harness import (CALL, NOBODY, REPLICA_A, REPLICA_B, SCHEMA, Waited, aborted, counted, equal, faults, key, label, named,
                     request, retried, retry_after, statuses, test, thrown)

common = key()
tools = [{"name": "weather", "input_schema": SCHEMA}]


def at(url, api_key, **more):
    return anthropic.Anthropic(base_url=url, api_key=api_key, **more)


client = at(REPLICA_A, common)


def body(text, **more):
    return {"model": "qwen", "max_tokens": 100, "messages": [{"role": "user", "content": text}], **more}


def say(text, who=client, **more):
    return who.messages.create(**body(text, **more))


@test
def _():
    """anthropic: a message"""
    id = label()
    answer = say("hi", extra_headers=named(id))
    equal([answer.type, answer.role, answer.content[0].type, answer.stop_reason], ["message", "assistant", "text", "end_turn"])
    equal(answer._request_id, id)
    counted(id, answer.usage.input_tokens, answer.usage.output_tokens)


@test
def _():
    """anthropic: a bearer token at the other replica"""
    bearer = anthropic.Anthropic(base_url=REPLICA_B, auth_token=common)
    assert say("hi", bearer, system="be brief").content[0].text


@test
def _():
    """anthropic: stream"""
    id = label()
    whole = say("tell").content[0].text
    events = list(say("tell", stream=True, extra_headers=named(id)))
    equal([events[0].type, events[1].type, events[-1].type], ["message_start", "content_block_start", "message_stop"])
    deltas = [e.delta.text for e in events if e.type == "content_block_delta"]
    equal(["".join(deltas), len(events)], [whole, len(deltas) + 5])
    counted(id, events[0].message.usage.input_tokens, events[-2].usage.output_tokens)


@test
def _():
    """anthropic: the stream helper"""
    id = label()
    with client.messages.stream(**body("tell"), extra_headers=named(id)) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    equal(final.content[0].text, text)
    counted(id, final.usage.input_tokens, final.usage.output_tokens)


@test
def _():
    """anthropic: tools, and their result sent back"""
    first = say("weather?", tools=tools, tool_choice={"type": "any"})
    use = first.content[0]
    equal([use.type, use.name, use.input, first.stop_reason], ["tool_use", "weather", CALL, "tool_use"])
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "12 C"}
    messages = [{"role": "user", "content": "weather?"}, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    equal(client.messages.create(model="qwen", max_tokens=50, tools=tools, messages=messages).content[0].type, "text")


@test
def _():
    """anthropic: tools streamed"""
    with client.messages.stream(**body("weather?", tools=tools, tool_choice={"type": "tool", "name": "weather"})) as stream:
        final = stream.get_final_message()
    equal([final.content[0].input, final.stop_reason], [CALL, "tool_use"])


def typed(kind, status, type, make):
    def run():
        id = label()
        who, change = make()
        error = thrown(kind, lambda: say("hi", who, extra_headers=named(id), **change))
        equal([error.status_code, error.body["type"], error.body["error"]["type"], error.request_id], [status, "error", type, id])
        assert error.body["error"]["message"]
        statuses(id, status)
        thrown(kind, lambda: say("hi", who, stream=True, **change))

    run.__doc__ = f"anthropic: {status} {type} is a {kind.__name__}, and not asked for again"
    test(run)


typed(anthropic.AuthenticationError, 401, "authentication_error", lambda: (at(REPLICA_A, NOBODY), {}))
typed(anthropic.PermissionDeniedError, 403, "permission_error", lambda: (at(REPLICA_A, key("--models", "other")), {}))
typed(anthropic.NotFoundError, 404, "not_found_error", lambda: (client, {"model": "nothing"}))
typed(anthropic.BadRequestError, 400, "invalid_request_error", lambda: (client, {"extra_body": {"max_tokens": "many"}}))
typed(anthropic.BadRequestError, 400, "BadRequestError", lambda: (client, {"messages": []}))  # the engine's own
typed(anthropic.RateLimitError, 429, "rate_limit_error", lambda: (at(REPLICA_A, key("--budget", "0.000001/month")), {}))


@test
def _():
    """anthropic: a rate limit of both replicas"""
    narrow = key("--rpm", "1")
    say("hi", at(REPLICA_A, narrow))
    error = thrown(anthropic.RateLimitError, lambda: say("hi", at(REPLICA_B, narrow, max_retries=0)))
    equal(error.body["error"]["type"], "rate_limit_error")
    retry_after(error.response.headers)


@test
def _():
    """anthropic: retries what is full, after Retry-After"""
    id = label()
    faults({"kind": "503", "times": 1})
    with Waited(1):
        say("hi", extra_headers=named(id))
    statuses(id, 503, 200)


@test
def _():
    """anthropic: retries while another request of the key runs"""
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
    """anthropic: aborted in mid-stream"""
    id = label()
    faults({"kind": "slow", "delay": "50ms"})
    with client.messages.stream(**body("tell"), extra_headers=named(id)) as stream:
        next(stream.text_stream)
        left = time.time()
    aborted(id, left)


@test
def _():
    """anthropic: a stream that breaks off"""
    id = label()
    faults({"kind": "cut", "after": 6, "times": 1})
    error = thrown(anthropic.APIStatusError, lambda: list(say("tell", stream=True, extra_headers=named(id))))
    equal(error.body["error"]["type"], "api_error")
    lines, _ = request(id, 1)
    equal([lines[0]["outcome"], lines[0]["usage_source"]], ["upstream_truncated", "estimated"])
