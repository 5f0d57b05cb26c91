// Tests of ai with @ai-sdk/openai-compatible.
import assert from 'node:assert/strict';
import { APICallError, RetryError, embedMany, generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { aborted, call, counted, faults, key, label, nobody, replicaA, replicaB, request, schema, statuses, test, thrown } from './harness.mjs';

const at = (url, apiKey) => createOpenAICompatible({ name: 'headgate', baseURL: url + '/v1', apiKey, includeUsage: true });
const named = (id) => ({ headers: { 'X-Request-Id': id } });
const weather = (execute) => ({ weather: tool({ description: 'tells', inputSchema: jsonSchema(schema), execute }) });

const common = await key();
const provider = at(replicaA, common);
const model = provider('qwen');

test('ai: text', async () => {
  const id = label();
  const { text, usage, response } = await generateText({ model, prompt: 'hi', ...named(id) });
  assert.ok(text);
  assert.equal(response.headers['x-request-id'], id);
  await counted(id, usage.inputTokens, usage.outputTokens);
});

test('ai: stream', async () => {
  const id = label();
  const { text: whole } = await generateText({ model, prompt: 'tell' });
  const result = streamText({ model: at(replicaB, common)('qwen'), prompt: 'tell', ...named(id) });
  let text = '';
  for await (const delta of result.textStream) text += delta;
  assert.equal(text, whole);
  const usage = await result.usage;
  await counted(id, usage.inputTokens, usage.outputTokens);
});

test('ai: tools', async () => {
  const { toolCalls, finishReason } = await generateText({ model, prompt: 'weather?', tools: weather(), toolChoice: 'required' });
  assert.deepEqual([toolCalls.map((c) => [c.toolName, c.input]), finishReason], [[['weather', call]], 'tool-calls']);
});

test('ai: tools streamed, and their result sent back', async () => {
  const given = [];
  const result = streamText({
    model,
    prompt: 'weather?',
    tools: weather(async (input) => (given.push(input), '12 C')),
    toolChoice: { type: 'tool', toolName: 'weather' },
    prepareStep: ({ stepNumber }) => (stepNumber > 0 ? { toolChoice: 'none' } : {}),
    stopWhen: stepCountIs(2),
  });
  await result.consumeStream();
  assert.deepEqual(given, [call]);
});

test('ai: embeddings', async () => {
  const { embeddings, usage } = await embedMany({ model: provider.embeddingModel('qwen'), values: ['one', 'two'] });
  assert.equal(embeddings.length, 2);
  assert.notDeepEqual(embeddings[0], embeddings[1]);
  assert.ok(usage.tokens > 0);
});

for (const [what, status, code, make] of [
  ['a wrong key', 401, 'invalid_api_key', async () => [at(replicaA, nobody)('qwen'), {}]],
  ['a model that is not allowed', 403, 'model_not_allowed', async () => [at(replicaA, await key('--models', 'other'))('qwen'), {}]],
  ['an unknown model', 404, 'model_not_found', async () => [provider('nothing'), {}]],
  ['a request too long for the engine', 400, 400, async () => [model, { maxOutputTokens: 100_000 }]],
]) {
  test(`ai: ${what} is an APICallError that is not retried`, async () => {
    const id = label();
    const [which, change] = await make();
    const error = await thrown(generateText({ model: which, prompt: 'hi', ...change, ...named(id) }), APICallError);
    assert.deepEqual([error.statusCode, error.data.error.code, error.isRetryable], [status, code, false]);
    assert.equal(error.message, error.data.error.message);
    await statuses(id, status);
  });
}

test('ai: a rate limit', async () => {
  const narrow = await key('--rpm', '1');
  await generateText({ model: at(replicaA, narrow)('qwen'), prompt: 'hi' });
  const error = await thrown(generateText({ model: at(replicaB, narrow)('qwen'), prompt: 'hi', maxRetries: 0 }), APICallError);
  assert.deepEqual([error.statusCode, error.data.error.code, error.isRetryable], [429, 'rate_limit_exceeded', true]);
  const after = Number(error.responseHeaders['retry-after']);
  assert.ok(Number.isInteger(after) && after >= 1 && after <= 60, `Retry-After: ${after}`);
});

test('ai: a budget; this library does not know x-should-retry', async () => {
  const id = label();
  const spent = at(replicaA, await key('--budget', '0.000001/month'))('qwen');
  const error = await thrown(generateText({ model: spent, prompt: 'hi', maxRetries: 1, ...named(id) }), RetryError);
  assert.equal(error.lastError.data.error.code, 'insufficient_quota');
  assert.equal(error.lastError.responseHeaders['x-should-retry'], 'false');
  await statuses(id, 429, 429);
});

test('ai: retries what is full, after Retry-After', async () => {
  const id = label();
  await faults({ kind: '503', times: 1 });
  assert.ok((await generateText({ model, prompt: 'hi', ...named(id) })).text);
  await statuses(id, 503, 200);
});

test('ai: aborted in mid-stream', async () => {
  const id = label();
  await faults({ kind: 'slow', delay: '50ms' });
  const controller = new AbortController();
  const result = streamText({ model, prompt: 'tell', abortSignal: controller.signal, ...named(id), onError: () => {} });
  let left;
  for await (const part of result.fullStream) {
    if (part.type === 'text-delta') {
      left ??= Date.now();
      controller.abort();
    }
  }
  await aborted(id, left);
});

test('ai: a stream that breaks off', async () => {
  const id = label();
  await faults({ kind: 'cut', after: 5, times: 1 });
  const errors = [];
  const result = streamText({ model, prompt: 'tell', ...named(id), onError: ({ error }) => errors.push(error) });
  const parts = [];
  for await (const part of result.fullStream) parts.push(part.type);
  assert.equal(errors.length, 1);
  assert.match(JSON.stringify(errors[0]) + errors[0].message, /broke the stream off/);
  assert.equal((await request(id, 1)).lines[0].outcome, 'upstream_truncated');
});
