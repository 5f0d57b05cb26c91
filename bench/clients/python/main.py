"""Runs the client libraries of Python against a fleet; see the folder above."""

import harness
import suite_openai  # noqa: F401
import suite_anthropic  # noqa: F401
import suite_litellm  # noqa: F401

harness.run_all()
