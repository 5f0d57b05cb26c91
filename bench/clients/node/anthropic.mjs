// Tests of @anthropic-ai/sdk.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { aborted, call, collect, counted, faults, key, label, nobody, replicaA, replicaB, request, retried, schema, statuses, test, thrown } from './harness.mjs';

const at = (baseURL, apiKey, more) => new Anthropic({ baseURL, apiKey, authToken: null, ...more });
const named = (id) => ({ headers: { 'X-Request-Id': id } });
const say = (content, more) => ({ model: 'qwen', max_tokens: 100, messages: [{ role: 'user', content }], ...more });
const tools = [{ name: 'weather', input_schema: schema }];

const common = await key();
const client = at(replicaA, common);

test('anthropic: a message', async () => {
  const id = label();
  const { data, request_id } = await client.messages.create(say('hi'), named(id)).withResponse();
  assert.deepEqual([data.type, data.role, data.content[0].type, data.stop_reason], ['message', 'assistant', 'text', 'end_turn']);
  assert.equal(request_id, id);
  await counted(id, data.usage.input_tokens, data.usage.output_tokens);
});

test('anthropic: a bearer token at the other replica', async () => {
  const bearer = new Anthropic({ baseURL: replicaB, apiKey: null, authToken: common });
  assert.ok((await bearer.messages.create(say('hi', { system: 'be brief' }))).content[0].text);
});

test('anthropic: stream', async () => {
  const id = label();
  const whole = (await client.messages.create(say('tell'))).content[0].text;
  const events = await collect(await client.messages.create(say('tell', { stream: true }), named(id)));
  assert.deepEqual([events[0].type, events[1].type, events.at(-1).type], ['message_start', 'content_block_start', 'message_stop']);
  const deltas = events.filter((e) => e.type === 'content_block_delta');
  assert.equal(deltas.map((e) => e.delta.text).join(''), whole);
  const { usage } = events.at(-2);
  assert.equal(events.length, deltas.length + 5);
  await counted(id, events[0].message.usage.input_tokens, usage.output_tokens);
});

test('anthropic: the stream helper', async () => {
  const id = label();
  let text = '';
  const final = await client.messages.stream(say('tell'), named(id)).on('text', (t) => (text += t)).finalMessage();
  assert.equal(final.content[0].text, text);
  await counted(id, final.usage.input_tokens, final.usage.output_tokens);
});

test('anthropic: tools', async () => {
  const first = await client.messages.create(say('weather?', { tools, tool_choice: { type: 'any' } }));
  const [use] = first.content;
  assert.deepEqual([use.type, use.name, use.input, first.stop_reason], ['tool_use', 'weather', call, 'tool_use']);
  const messages = [{ role: 'user', content: 'weather?' }, { role: 'assistant', content: first.content }, { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: '12 C' }] }];
  assert.equal((await client.messages.create({ model: 'qwen', max_tokens: 50, tools, messages })).content[0].type, 'text');
});

test('anthropic: tools streamed', async () => {
  let partial = '';
  const stream = client.messages.stream(say('weather?', { tools, tool_choice: { type: 'tool', name: 'weather' } }));
  const final = await stream.on('inputJson', (delta) => (partial += delta)).finalMessage();
  assert.deepEqual([final.content[0].input, JSON.parse(partial), final.stop_reason], [call, call, 'tool_use']);
});

for (const [kind, status, type, make] of [
  [Anthropic.AuthenticationError, 401, 'authentication_error', async () => [at(replicaA, nobody), {}]],
  [Anthropic.PermissionDeniedError, 403, 'permission_error', async () => [at(replicaA, await key('--models', 'other')), {}]],
  [Anthropic.NotFoundError, 404, 'not_found_error', async () => [client, { model: 'nothing' }]],
  [Anthropic.BadRequestError, 400, 'invalid_request_error', async () => [client, { max_tokens: 'many' }]],
  [Anthropic.BadRequestError, 400, 'BadRequestError', async () => [client, { messages: [] }]], // the engine's own
  [Anthropic.RateLimitError, 429, 'rate_limit_error', async () => [at(replicaA, await key('--budget', '0.000001/month')), {}]],
]) {
  test(`anthropic: ${status} ${type} is a ${kind.name}, and not asked for again`, async () => {
    const id = label();
    const [who, change] = await make();
    const error = await thrown(who.messages.create(say('hi', change), named(id)), kind);
    assert.deepEqual([error.status, error.type, error.error.type], [status, type, 'error']);
    assert.ok(error.error.error.message);
    assert.equal(error.requestID, id);
    await statuses(id, status);
    await thrown(who.messages.create(say('hi', { ...change, stream: true })), kind);
  });
}

test('anthropic: what does not exist', async () => {
  const error = await thrown(client.messages.countTokens({ model: 'qwen', messages: [{ role: 'user', content: 'hi' }] }), Anthropic.NotFoundError);
  assert.equal(error.type, 'not_found_error');
});

test('anthropic: a rate limit of both replicas', async () => {
  const narrow = await key('--rpm', '1');
  await at(replicaA, narrow).messages.create(say('hi'));
  const error = await thrown(at(replicaB, narrow, { maxRetries: 0 }).messages.create(say('hi')), Anthropic.RateLimitError);
  assert.equal(error.type, 'rate_limit_error');
  const after = Number(error.headers.get('retry-after'));
  assert.ok(Number.isInteger(after) && after >= 1 && after <= 60, `Retry-After: ${after}`);
});

test('anthropic: retries what is full, after Retry-After', async () => {
  const id = label();
  const began = Date.now();
  await faults({ kind: '503', times: 1 });
  await client.messages.create(say('hi'), named(id));
  assert.ok(Date.now() - began >= 1000);
  await statuses(id, 503, 200);
});

test('anthropic: retries while another request of the key runs', async () => {
  const single = at(replicaA, await key('--parallel', '1'), { maxRetries: 5 });
  const id = label();
  await faults({ kind: 'slow', times: 1, delay: '20ms' }, { kind: 'slow', delay: '1ms' });
  const running = collect(await single.messages.create(say('tell', { stream: true })));
  await single.messages.create(say('hi'), named(id));
  await running;
  await retried(id, 429);
});

test('anthropic: aborted in mid-stream', async () => {
  const id = label();
  await faults({ kind: 'slow', delay: '50ms' });
  const stream = client.messages.stream(say('tell'), named(id));
  let left;
  stream.on('text', () => {
    left ??= Date.now();
    stream.abort();
  });
  await thrown(stream.finalMessage(), Anthropic.APIUserAbortError);
  await aborted(id, left);
});

test('anthropic: a stream that breaks off', async () => {
  const id = label();
  await faults({ kind: 'cut', after: 6, times: 1 });
  const error = await thrown(collect(await client.messages.create(say('tell', { stream: true }), named(id))), Anthropic.APIError);
  assert.deepEqual([error.type, error.error.error.type], ['api_error', 'api_error']);
  const { lines } = await request(id, 1);
  assert.deepEqual([lines[0].outcome, lines[0].usage_source], ['upstream_truncated', 'estimated']);
});
