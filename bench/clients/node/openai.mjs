// Tests of openai.
import assert from 'node:assert/strict';
import OpenAI, { toFile } from 'openai';
import { aborted, call, collect, counted, faults, key, label, nobody, replicaA, replicaB, request, retried, schema, statuses, test, thrown } from './harness.mjs';

const at = (url, apiKey, more) => new OpenAI({ baseURL: url + '/v1', apiKey, ...more });
const named = (id) => ({ headers: { 'X-Request-Id': id } });
const say = (content, more) => ({ model: 'qwen', messages: [{ role: 'user', content }], ...more });
const tools = [{ type: 'function', function: { name: 'weather', parameters: schema } }];

const common = await key();
const client = at(replicaA, common);
const other = at(replicaB, common);

test('openai: chat', async () => {
  const id = label();
  const { data, response, request_id } = await client.chat.completions.create(say('hi'), named(id)).withResponse();
  assert.ok(data.choices[0].message.content);
  assert.equal(request_id, id);
  assert.match(response.headers.get('x-headgate-backend'), /^b[12]$/);
  await counted(id, data.usage.prompt_tokens, data.usage.completion_tokens);
});

test('openai: stream, the usage asked for', async () => {
  const id = label();
  const whole = (await client.chat.completions.create(say('tell'))).choices[0].message.content;
  const chunks = await collect(await client.chat.completions.create(say('tell', { stream: true, stream_options: { include_usage: true } }), named(id)));
  const { usage } = chunks.at(-1);
  assert.equal(chunks.map((c) => c.choices[0]?.delta.content ?? '').join(''), whole);
  assert.equal(chunks.filter((c) => c.usage).length, 1);
  assert.equal(chunks.length, usage.completion_tokens + 2);
  await counted(id, usage.prompt_tokens, usage.completion_tokens);
});

test('openai: stream, no usage asked for', async () => {
  const id = label();
  const chunks = await collect(await other.chat.completions.create(say('tell', { stream: true }), named(id)));
  assert.ok(chunks.every((c) => c.choices.length === 1 && !c.usage));
  const { lines, engine } = await request(id, 1);
  assert.equal(chunks.length, engine[0].output + 1);
  assert.deepEqual([lines[0].completion_tokens, lines[0].usage_source], [engine[0].output, 'backend']);
});

test('openai: the stream helper', async () => {
  const stream = client.chat.completions.stream(say('tell', { stream_options: { include_usage: true } }));
  let text = '';
  stream.on('content', (delta) => (text += delta));
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, text);
  assert.ok(final.usage.completion_tokens > 0);
});

test('openai: tools', async () => {
  const first = (await client.chat.completions.create(say('weather?', { tools, tool_choice: 'required' }))).choices[0];
  const asked = first.message.tool_calls[0];
  assert.deepEqual([asked.function.name, JSON.parse(asked.function.arguments), first.finish_reason], ['weather', call, 'tool_calls']);
  const messages = [{ role: 'user', content: 'weather?' }, first.message, { role: 'tool', tool_call_id: asked.id, content: '12 C' }];
  assert.ok((await client.chat.completions.create({ model: 'qwen', messages, tools })).choices[0].message.content);
});

test('openai: tools streamed', async () => {
  const choice = { type: 'function', function: { name: 'weather' } };
  const final = await client.chat.completions.stream(say('weather?', { tools, tool_choice: choice })).finalChatCompletion();
  assert.deepEqual(JSON.parse(final.choices[0].message.tool_calls[0].function.arguments), call);
});

test('openai: a tool that is run', async () => {
  const given = [];
  const weather = { name: 'weather', parameters: schema, parse: JSON.parse, function: (input) => (given.push(input), '12 C') };
  const run = client.chat.completions.runTools(say('weather?', { tools: [{ type: 'function', function: weather }], tool_choice: { type: 'function', function: { name: 'weather' } } }));
  await run.done();
  assert.deepEqual(given, [call]);
});

test('openai: embeddings', async () => {
  const id = label();
  const ask = (encoding_format) => client.embeddings.create({ model: 'qwen', input: ['one', 'two'], encoding_format }, named(id));
  const { data, usage } = await ask(undefined); // asks for base64 and unpacks it
  const floats = (await ask('float')).data;
  data[1].embedding.forEach((n, i) => assert.ok(Math.abs(n - floats[1].embedding[i]) < 1e-5, `figure ${i}`));
  const { lines, engine } = await request(id, 2);
  assert.deepEqual([lines[0].prompt_tokens, engine[0].prompt], [usage.prompt_tokens, usage.prompt_tokens]);
  assert.match(engine[0].body, /base64/);
});

test('openai: responses, over two replicas', async () => {
  const id = label();
  const first = await client.responses.create({ model: 'qwen', input: 'hi' }, named(id));
  assert.ok(first.output_text);
  await counted(id, first.usage.input_tokens, first.usage.output_tokens);
  const second = await other.responses.create({ model: 'qwen', input: 'and then?', previous_response_id: first.id });
  assert.ok(second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens);
  assert.equal((await other.responses.retrieve(first.id)).output[0].content[0].text, first.output_text);
  assert.equal((await thrown(client.responses.retrieve('resp_0123'), OpenAI.NotFoundError)).status, 404);
});

test('openai: responses in the background, cancelled at the other replica', async () => {
  await faults({ kind: 'slow', delay: '1ms' });
  const started = await client.responses.create({ model: 'qwen', input: 'tell', background: true, max_output_tokens: 30000, ignore_eos: true });
  assert.match(started.status, /queued|in_progress/);
  assert.equal((await other.responses.cancel(started.id)).status, 'cancelled');
  assert.equal((await client.responses.retrieve(started.id)).status, 'cancelled');
});

test('openai: responses streamed', async () => {
  const id = label();
  const events = await collect(await client.responses.create({ model: 'qwen', input: 'tell', stream: true }, named(id)));
  assert.deepEqual(events.map((e) => e.sequence_number), events.map((_, i) => i));
  const { response } = events.at(-1);
  assert.equal(events.at(-1).type, 'response.completed');
  const deltas = events.filter((e) => e.type === 'response.output_text.delta').map((e) => e.delta);
  assert.equal(deltas.join(''), response.output[0].content[0].text);
  await counted(id, response.usage.input_tokens, response.usage.output_tokens);
});

test('openai: responses with a tool, streamed', async () => {
  const stream = client.responses.stream({ model: 'qwen', input: 'hi', tools: [{ type: 'function', name: 'weather', parameters: schema, strict: false }], tool_choice: 'required' });
  let partial = '';
  stream.on('response.function_call_arguments.delta', (e) => (partial += e.delta));
  const [item] = (await stream.finalResponse()).output;
  assert.deepEqual([item.type, item.name, JSON.parse(item.arguments), JSON.parse(partial)], ['function_call', 'weather', call, call]);
});

test('openai: transcription', async () => {
  const file = await toFile(Buffer.alloc(40_000), 'a.wav');
  assert.ok((await client.audio.transcriptions.create({ file, model: 'qwen' })).text);
  const events = await collect(await client.audio.transcriptions.create({ file, model: 'qwen', stream: true }));
  assert.ok(events.length > 1);
});

test('openai: models', async () => {
  assert.deepEqual((await collect(client.models.list())).map((m) => m.id).sort(), ['other', 'qwen']);
  assert.equal((await client.models.retrieve('qwen')).id, 'qwen');
});

for (const [kind, code, type, status, make] of [
  [OpenAI.AuthenticationError, 'invalid_api_key', 'authentication_error', 401, async () => [at(replicaA, nobody), {}]],
  [OpenAI.PermissionDeniedError, 'model_not_allowed', 'permission_error', 403, async () => [at(replicaA, await key('--models', 'other')), {}]],
  [OpenAI.NotFoundError, 'model_not_found', 'not_found_error', 404, async () => [client, { model: 'nothing' }]],
  [OpenAI.BadRequestError, 'invalid_field', 'invalid_request_error', 400, async () => [client, { n: 'two' }]],
  [OpenAI.BadRequestError, 400, 'BadRequestError', 400, async () => [client, { max_tokens: 100_000 }]], // the engine's own
  [OpenAI.RateLimitError, 'insufficient_quota', 'insufficient_quota', 429, async () => [at(replicaA, await key('--budget', '0.000001/month')), {}]],
]) {
  test(`openai: ${code} is a ${kind.name}, and not asked for again`, async () => {
    const id = label();
    const [who, change] = await make();
    const error = await thrown(who.chat.completions.create(say('hi', change), named(id)), kind);
    assert.deepEqual([error.status, error.code, error.type], [status, code, type]);
    assert.equal(error.requestID, id);
    assert.ok(error.error.message);
    await statuses(id, status);
    await thrown(who.chat.completions.create(say('hi', { ...change, stream: true })), kind);
  });
}

test('openai: an unknown route', async () => {
  await thrown(client.files.list(), OpenAI.NotFoundError);
});

test('openai: a rate limit of both replicas', async () => {
  const narrow = await key('--rpm', '1');
  await at(replicaA, narrow).chat.completions.create(say('hi'));
  const error = await thrown(at(replicaB, narrow, { maxRetries: 0 }).chat.completions.create(say('hi')), OpenAI.RateLimitError);
  assert.deepEqual([error.code, error.type], ['rate_limit_exceeded', 'rate_limit_error']);
  const after = Number(error.headers.get('retry-after'));
  assert.ok(Number.isInteger(after) && after >= 1 && after <= 60, `Retry-After: ${after}`);
  assert.deepEqual(['limit', 'remaining'].map((n) => error.headers.get(`x-ratelimit-${n}-requests`)), ['1', '0']);
});

test('openai: retries what is full, after Retry-After', async () => {
  const id = label();
  const began = Date.now();
  await faults({ kind: '503', times: 1 });
  await client.chat.completions.create(say('hi'), named(id));
  assert.ok(Date.now() - began >= 1000);
  await statuses(id, 503, 200);
});

test("openai: retries an engine's failure, streamed", async () => {
  const id = label();
  await faults({ kind: '500', times: 1 });
  await collect(await client.chat.completions.create(say('hi', { stream: true }), named(id)));
  await statuses(id, 502, 200);
});

test('openai: retries while another request of the key runs', async () => {
  const single = at(replicaA, await key('--parallel', '1'), { maxRetries: 5 });
  const id = label();
  await faults({ kind: 'slow', times: 1, delay: '20ms' }, { kind: 'slow', delay: '1ms' });
  const running = collect(await single.chat.completions.create(say('tell', { stream: true })));
  await single.chat.completions.create(say('hi'), named(id));
  await running;
  await retried(id, 429);
});

for (const [what, leave] of [
  ['by its controller', (stream) => stream.controller.abort()],
  ['by leaving the loop', () => {}],
]) {
  test(`openai: aborted in mid-stream ${what}`, async () => {
    const id = label();
    await faults({ kind: 'slow', delay: '50ms' });
    const stream = await client.chat.completions.create(say('tell', { stream: true }), named(id));
    let chunks = 0;
    for await (const _ of stream) if (++chunks === 3) break;
    leave(stream);
    await aborted(id, Date.now());
  });
}

test('openai: aborted while it waits', async () => {
  const id = label();
  await faults({ kind: 'hang_before_head' });
  const controller = new AbortController();
  const waiting = thrown(client.chat.completions.create(say('tell'), { ...named(id), signal: controller.signal }), OpenAI.APIUserAbortError);
  setTimeout(() => controller.abort(), 100);
  await waiting;
  const { lines } = await request(id, 1);
  assert.equal(lines[0].outcome, 'client_gone');
});

test('openai: a stream that breaks off', async () => {
  const id = label();
  await faults({ kind: 'cut', after: 5, times: 1 });
  let chunks = 0;
  const reading = (async () => {
    for await (const _ of await client.chat.completions.create(say('tell', { stream: true }), named(id))) chunks++;
  })();
  const error = await thrown(reading, OpenAI.APIError);
  assert.deepEqual([chunks, error.code, error.type], [5, 'stream_truncated', 'upstream_error']);
  assert.equal((await request(id, 1)).lines[0].outcome, 'upstream_truncated');
});

test('openai: a response that breaks off', async () => {
  await faults({ kind: 'cut', after: 8, times: 1 });
  const stream = await client.responses.create({ model: 'qwen', input: 'tell', stream: true });
  const error = await thrown(collect(stream), OpenAI.APIError);
  assert.equal(error.code, 'stream_truncated');
});
