"""What the suites have in common: where things are, tests, and questions to the world."""

import itertools
import json
import os
import signal
import sys
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request

REPLICA_A = os.environ["HEADGATE_A"]
REPLICA_B = os.environ["HEADGATE_B"]
WORLD = os.environ["HEADGATE_WORLD"]

NOBODY = "sk-acme-00000000000000000000000000000000"

# The tool every suite has; its call is the engine's invention.
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}},
    "required": ["city", "unit"],
}
CALL = {"city": "some city", "unit": "C"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]

# PATIENCE is for one test, in seconds: a library that was told to wait for long must not hold up the others.
PATIENCE = 30

_tests = []
_labels = itertools.count(1)


def test(run):
    """Registers a test; its docstring is its name."""
    _tests.append((run.__doc__, run))
    return run


def run_all():
    passed = failed = 0
    signal.signal(signal.SIGALRM, _late)
    for name, run in _tests:
        try:
            signal.alarm(PATIENCE)
            run()
            passed += 1
            print("ok  ", name, flush=True)
        except Exception:
            failed += 1
            print(f"FAIL {name}: {traceback.format_exc()}", flush=True)
        signal.alarm(0)
        faults()
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed else 0)


def _late(*_):
    raise TimeoutError(f"not over within {PATIENCE} s")


def label():
    """An X-Request-Id nobody has used."""
    return f"python-{os.getpid()}-{next(_labels)}"


def named(id):
    return {"X-Request-Id": id}


def key(*flags):
    """An API key with these flags of `headgate keys create`."""
    return _world("/key", flags)


def faults(*all):
    """Befall the next requests at both engines: dict(kind, after, times, delay); none ends them."""
    _world("/faults", all)


def _world(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(WORLD + path, data) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as e:
        raise AssertionError(e.read().decode()) from None


def request(id, n):
    """Waits until n usage lines with that id are written and the engines are done with it; n is 0 where it is not known:
    until one says 200."""
    asked = json.loads(_world(f"/request?id={urllib.parse.quote(id)}&lines={n}"))
    assert n in (0, len(asked["lines"])), asked
    return asked["lines"], asked["engine"]


def counted(id, prompt, completion):
    """The client, the engine and the usage line agree on the tokens of the one request."""
    lines, engine = request(id, 1)
    assert prompt > 0 and completion > 0, (prompt, completion)
    equal([(e["prompt"], e["output"]) for e in engine], [(prompt, completion)])
    line = [lines[0][m] for m in ("prompt_tokens", "completion_tokens", "usage_source", "outcome")]
    equal(line, [prompt, completion, "backend", "ok"])


def statuses(id, *all):
    """These answers were given to the requests with that id: what the library did not show, and retried."""
    equal([line["status"] for line in request(id, len(all))[0]], list(all))


def retried(id, refusal):
    """The requests with that id were refused with this status, until the last one was served."""
    found = [line["status"] for line in request(id, 0)[0]]
    assert len(found) > 1 and found == [refusal] * (len(found) - 1) + [200], found


def aborted(id, left):
    """The engine has seen the client leave soon after it did."""
    lines, engine = request(id, 1)
    equal([lines[0]["outcome"]] + [e["outcome"] for e in engine], ["client_gone", "abort"])
    after = engine[0]["abort_ms"] - left * 1000
    assert after < 2000, f"the engine saw it {after} ms later"


def equal(got, want):
    assert got == want, f"got {got!r}, want {want!r}"


def thrown(kind, run):
    """The error of that class; anything else fails the test."""
    try:
        run()
    except kind as e:
        return e
    raise AssertionError(f"nothing was raised, want {kind.__name__}")


def retry_after(headers):
    seconds = headers["retry-after"]
    assert seconds.isdigit() and 1 <= int(seconds) <= 60, seconds


class Waited:
    """with Waited(1): … fails if the body took less."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        self.began = time.monotonic()

    def __exit__(self, kind, *_):
        took = time.monotonic() - self.began
        assert kind or took >= self.seconds, f"took {took} s only"
